"""Packages for a machine with a GPU and without a network: wheels for the program, and vLLM in one archive that fits one transfer.

vLLM's wheel has compiled kernels for every GPU since 2017. Of them only those for the machine's GPU are kept (`only_for`), and of the
packages that it asks for only those that a run with a dense model imports: the archive has a tenth of the size. It runs on no other GPU.
"""

import shutil
import struct
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from pathlib import Path

PIP = (sys.executable, "-m", "pip")
PYTHON = "3.12"
"""The version of Python on the machine."""
ARCHITECTURE = 90
"""The compute capability of its GPU, an H100 or H200, times ten."""
CARRIED = ("msgspec", "duckdb", "latex2sympy2-extended", "math-verify", "antlr4-python3-runtime")
"""Packages that the program needs and that the machine lacks; it has torch, transformers, peft, numba, pyarrow."""
VLLM = "0.24.0"
"""For the machine's torch, 2.11."""
BESIDE_VLLM = """
    pydantic==2.13.* pydantic_core==2.46.* fastapi==0.136.* starlette<1.4 openai<3 anthropic<1 mcp<2 cachetools<8 blake3 pyzmq
    msgspec xgrammar apache-tvm-ffi llguidance<1.8 outlines_core==0.2.14 lark==1.2.2 diskcache==5.6.3 mistral_common
    compressed-tensors==0.17.0 loguru depyf==0.20.0 astor dill watchfiles cbor2 ijson pybase64 setproctitle openai-harmony
    jsonschema jsonschema-specifications referencing rpds-py interegular python-json-logger partial-json-parser
    lm-format-enforcer==0.11.3 prometheus-fastapi-instrumentator model-hosting-container-standards jmespath opentelemetry-api
    annotated-types typing-inspection jiter sniffio distro docstring-parser python-multipart sse-starlette httpx-sse uvicorn
    pydantic-settings python-dotenv pyjwt pydantic-extra-types
""".split()
"""What `VLLM` imports at its start and the machine lacks. FlashInfer, TileLang, CUTLASS and other kernels are left out."""
UNUSED = (
    *("vllm-rs", "_rust_tool_parser.abi3.so", "_flashmla*.so", "_qutlass_C.abi3.so", "vllm_flash_attn/_vllm_fa2_C.abi3.so"),
    *("vllm_flash_attn/cute", "third_party/deep_gemm", "third_party/fmha_sm100", "third_party/flashmla"),
    *("entrypoints/serve/instrumentator/static", "model_executor/layers/fused_moe/configs/*.json"),
    *("model_executor/layers/quantization/utils/configs/*.json", "**/*.jpg", "**/*.png", "**/*.cu", "**/*.cuh", "**/*.h", "**/*.hpp"),
)
"""Parts of vLLM that a dense model on such a GPU, in FlashAttention 3, does not load; vLLM starts without them."""
_FATBIN, _ELF = 0xBA55ED50, 2


def wheels(folder: Path) -> None:
    """Fetch the wheels of `CARRIED`, in the versions that are installed here."""
    _pip("download", *(f"{name}=={version(name)}" for name in CARRIED), "--dest", str(folder))


def vllm_archive(path: Path, folder: Path) -> None:
    """Write vLLM and what it needs to `path`, a .tar.xz whose content goes to one folder of PYTHONPATH; made in `folder`."""
    site = folder / "site"
    shutil.rmtree(site, ignore_errors=True)
    _pip("install", f"vllm=={VLLM}", *BESIDE_VLLM, "--target", str(site), "--no-compile")
    for pattern in UNUSED:
        for found in (site / "vllm").glob(pattern):
            shutil.rmtree(found) if found.is_dir() else found.unlink()
    shutil.rmtree(site / "bin", ignore_errors=True)
    for tokenizer in (site / "mistral_common/data").glob("*tekken*"):
        tokenizer.unlink()
    for library in (site / "vllm").glob("*.so"):
        library.write_bytes(only_for(ARCHITECTURE, library.read_bytes()))
    with tarfile.open(path, "w:xz", preset=9) as archive:
        archive.add(site, arcname=".")


def only_for(architecture: int, library: bytes) -> bytes:
    """A CUDA library whose kernels for other GPUs are zeros, which compress to nothing; offsets stay, so that it can be loaded.

    A fatbin is a header (magic, version, size of the header, size of what follows) and entries, each with a header of its own: kind (1 for
    PTX, 2 for a compiled kernel), size of the header, size of the payload, and at byte 28 the architecture. CUDA's driver takes the entry
    that fits.
    """
    whole = bytearray(library)
    for start, end in _fatbins(library):
        at = start
        while at < end:
            kind, _, header, size = struct.unpack_from("<HHIQ", whole, at)
            if (kind, *struct.unpack_from("<I", whole, at + 28)) != (_ELF, architecture):
                whole[at + header : at + header + size] = bytes(size)
            at += header + size
    return bytes(whole)


def _fatbins(library: bytes) -> Iterator[tuple[int, int]]:
    """Where the entries of each fatbin begin and end."""
    magic = struct.pack("<IHH", _FATBIN, 1, 16)
    at = library.find(magic)
    while at >= 0:
        (size,) = struct.unpack_from("<Q", library, at + 8)
        yield at + 16, at + 16 + size
        at = library.find(magic, at + 16 + size)


def _pip(verb: str, *words: str) -> None:
    tags: Iterable[str] = (*(f"manylinux_2_{minor}" for minor in range(35, 4, -1)), "manylinux2014", "manylinux1")
    platforms = [word for tag in tags for word in ("--platform", f"{tag}_x86_64")]
    subprocess.run([*PIP, verb, "-qq", "--no-deps", "--only-binary=:all:", "--python-version", PYTHON, *platforms, *words], check=True)
