//! Compiles the shims over llama.cpp's chat formats and its memory accounting, with the headers of the llama.cpp that
//! llama-cpp-sys-2 builds.
//!
//! Not here: llama.cpp itself; its library `common` is compiled and linked by llama-cpp-sys-2.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Crate with llama.cpp's sources.
const SYS_CRATE: &str = "llama-cpp-sys-2";

fn main() {
    let llama = sources().join("llama.cpp");
    println!("cargo:rerun-if-changed=cpp");
    println!("cargo:rerun-if-changed={}", llama.join("common/chat.h").display());
    cc::Build::new()
        .cpp(true)
        // As in llama.cpp's own CMakeLists.txt and llama-cpp-sys-2's build.rs.
        .std("c++17")
        .define("NDEBUG", None)
        .opt_level(2)
        .warnings(false)
        .include(llama.join("common"))
        .include(llama.join("include"))
        .include(llama.join("src"))
        .include(llama.join("ggml/include"))
        .include(llama.join("tools/mtmd"))
        .include(llama.join("vendor"))
        .file("cpp/shim.cpp")
        .file("cpp/hidden.cpp")
        .file("cpp/memory.cpp")
        .compile("warmpath_llama_chat");
}

/// Returns the folder of the crate with llama.cpp's sources, which cargo may keep anywhere.
fn sources() -> PathBuf {
    let cargo = std::env::var_os("CARGO").expect("cargo sets CARGO for build scripts");
    let target = std::env::var("TARGET").expect("cargo sets TARGET for build scripts");
    // cargo fetches packages that only tests need, too; the filter skips other platforms' packages.
    let args = ["metadata", "--format-version", "1", "--filter-platform", &target];
    let output = Command::new(cargo).args(args).output();
    let output = output.expect("cargo metadata starts, as cargo runs this");
    assert!(output.status.success(), "cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).expect("cargo metadata writes JSON");
    let packages = metadata["packages"].as_array().expect("cargo metadata lists packages");
    let package = packages.iter().find(|package| package["name"] == SYS_CRATE);
    let manifest = package.and_then(|package| package["manifest_path"].as_str());
    let manifest = manifest.unwrap_or_else(|| panic!("{SYS_CRATE} is not among the packages"));
    Path::new(manifest).parent().expect("a manifest lies in a folder").to_owned()
}
