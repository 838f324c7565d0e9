"""Measures the speed of each set of CPU kernels in the image on this machine, beside this machine's own build: `make bench-cpu-variants`.

One worker at a time, in turn, with the bench model, two threads, and flash attention off, so that all compute the same way. Not here: that they
compute right (test_image.py).
"""

import pathlib
import statistics
import tempfile

import image
from kube import free_port
from local_fleet import Process, make_model, wait_until_ready
from test_image import completion

NATIVE = "built for this machine"
ROUNDS = 3
FLAGS = ("--threads", 2, "--slots", 1, "--ctx-size", 2048, "--flash-attn", "off", "--kv-unified", "off")
N_TOKENS = 96


def measure(folder, name, round_idx):
    """Returns prompt and answer tokens a second; nothing where these kernels do not run here."""
    address = f"127.0.0.1:{free_port()}"
    program, variant = "warmpath-worker", ()
    if name != NATIVE:
        program, variant = image.FILES / "bin/warmpath-worker", ("--cpu-variant", name)
    worker = Process(f"{name}-{round_idx}", folder, program, "--model", folder / "bench-1.gguf", "--listen", address, *FLAGS, *variant)
    try:
        wait_until_ready(f"http://{address}", worker)
    except AssertionError:
        worker.stop()
        return None
    try:
        if name != NATIVE and image.loaded(worker.process) != {name}:
            raise RuntimeError(worker.log())
        prompt = f"{round_idx} " + "a plain word and another one " * 160
        timings = completion(f"http://{address}", prompt=prompt, n_predict=N_TOKENS, ignore_eos=True, cache_prompt=False)["timings"]
        return timings["prompt_per_second"], timings["predicted_per_second"]
    finally:
        worker.stop()


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        make_model(folder, "bench", 1)
        measured = {name: [] for name in (*image.variants(), NATIVE)}
        for round_idx in range(ROUNDS):
            for name, rates in measured.items():
                if len(rates) == round_idx and (rate := measure(folder, name, round_idx)):
                    rates.append(rate)
    medians = {name: [statistics.median(column) for column in zip(*rates)] for name, rates in measured.items() if rates}
    native = medians[NATIVE]
    print("| kernels | prefill tokens/s | decode tokens/s | prefill, of this machine's build | decode |\n|---|---|---|---|---|")
    for name, (prefill, decode) in sorted(medians.items(), key=lambda of: of[1]):
        print(f"| {name} | {prefill:.0f} | {decode:.0f} | {prefill / native[0]:.2f}x | {decode / native[1]:.2f}x |")
    absent = [name for name, rates in measured.items() if not rates]
    print(f"\nNot for this processor: {', '.join(absent) or 'none'}.")


if __name__ == "__main__":
    main()
