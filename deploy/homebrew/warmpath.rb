# Homebrew's formula; scripts/release-index.sh fills in the release.
class Warmpath < Formula
  desc "Prefix-aware fleet for llama.cpp, routers in front of workers"
  homepage "@HOMEPAGE@"
  version "@VERSION@"
  license "Apache-2.0"

  on_macos do
    depends_on arch: :arm64
    url "@URL@/warmpath-#{version}-macos-arm64.tar.gz"
    sha256 "@MACOS_ARM64@"
  end

  on_linux do
    on_intel do
      url "@URL@/warmpath-#{version}-linux-x86_64.tar.gz"
      sha256 "@LINUX_X86_64@"
    end
    on_arm do
      url "@URL@/warmpath-#{version}-linux-aarch64.tar.gz"
      sha256 "@LINUX_AARCH64@"
    end
  end

  def install
    # The programs find llama.cpp's libraries beside them.
    libexec.install "bin", "lib"
    bin.install_symlink libexec.glob("bin/*")
    man1.install Dir["share/man/man1/*"]
    bash_completion.install Dir["share/bash-completion/completions/*"]
    zsh_completion.install Dir["share/zsh/site-functions/*"]
    fish_completion.install Dir["share/fish/vendor_completions.d/*"]
    doc.install Dir["share/doc/warmpath/*"]
  end

  test do
    assert_match "warmpath-worker #{version}", shell_output("#{bin}/warmpath-worker --version")
    assert_match "queue-max", shell_output("#{bin}/warmpath-router --print-config")
  end
end
