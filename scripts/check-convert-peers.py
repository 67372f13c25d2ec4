#!/usr/bin/env python3
"""Convert the golden directories, load the files in llama.cpp, and compare the logits with ours.

    scripts/check-convert-peers.py --oxidize target/quick/oxidize --llama LLAMA.CPP [--only NAME]

LLAMA.CPP is a checkout built in `build/`; this script compiles a small program that prints its logits. Every golden
model with safetensors is converted with `oxidize convert`, and llama.cpp's logits at every position of the first
golden input are compared with those of `oxidize logits` on the same file. Encoders, which have no logits, are compared
with PyTorch's hidden states. Needs numpy, ml_dtypes and safetensors.
"""

import argparse
import csv
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import ml_dtypes  # noqa: F401  (registers bfloat16 with numpy)
import numpy as np
from safetensors.numpy import load_file, save_file

ROOT = pathlib.Path(__file__).resolve().parent.parent

PROGRAM = r"""
#include "llama.h"
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>
// dump MODEL ADAPTER|- logits|hidden OUT ENCODER_TOKENS,… [DECODER_TOKENS,…]
static std::vector<llama_token> tokens(char * list) {
    std::vector<llama_token> out;
    for (char * t = strtok(list, ","); t; t = strtok(nullptr, ",")) out.push_back(atoi(t));
    return out;
}
int main(int argc, char ** argv) {
    llama_log_set([](ggml_log_level level, const char * text, void *) {
        if (level >= GGML_LOG_LEVEL_ERROR) fputs(text, stderr); }, nullptr);
    llama_backend_init();
    llama_model * model = llama_model_load_from_file(argv[1], llama_model_default_params());
    if (!model) return 3;
    const bool hidden = !strcmp(argv[3], "hidden");
    llama_context_params params = llama_context_default_params();
    params.n_ctx = 256; params.n_batch = 256; params.n_ubatch = 256;
    params.n_threads = 1; params.n_threads_batch = 1;
    params.type_k = GGML_TYPE_F32; params.type_v = GGML_TYPE_F32;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    if (hidden) { params.embeddings = true; params.pooling_type = LLAMA_POOLING_TYPE_NONE; }
    llama_context * ctx = llama_init_from_model(model, params);
    if (!ctx) return 4;
    if (strcmp(argv[2], "-")) {
        llama_adapter_lora * adapter = llama_adapter_lora_init(model, argv[2]);
        if (!adapter) return 5;
        float scale = 1.0f;
        if (llama_set_adapters_lora(ctx, &adapter, 1, &scale)) return 6;
    }
    std::vector<llama_token> input = tokens(argv[5]);
    if (argc > 6) {
        llama_batch batch = llama_batch_get_one(input.data(), input.size());
        if (llama_encode(ctx, batch)) return 7;
        input = tokens(argv[6]);
    }
    const int n = input.size();
    llama_batch batch = llama_batch_init(n, 0, 1);
    for (int i = 0; i < n; i++) {
        batch.token[i] = input[i]; batch.pos[i] = i; batch.n_seq_id[i] = 1;
        batch.seq_id[i][0] = 0; batch.logits[i] = 1;
    }
    batch.n_tokens = n;
    const bool encode = hidden && llama_model_has_encoder(model);
    if (encode ? llama_encode(ctx, batch) : llama_decode(ctx, batch)) return 8;
    const int width = hidden ? llama_model_n_embd(model) : llama_vocab_n_tokens(llama_model_get_vocab(model));
    FILE * out = fopen(argv[4], "wb");
    for (int i = 0; i < n; i++) {
        const float * row = hidden ? llama_get_embeddings_ith(ctx, i) : llama_get_logits_ith(ctx, i);
        if (!row) return 9;
        fwrite(row, 4, width, out);
    }
    fclose(out);
    return 0;
}
"""


def compile_program(llama, work):
    source, program = work / "dump.cpp", work / "dump"
    source.write_text(PROGRAM)
    libraries = llama / "build" / "bin"
    subprocess.run(
        ["c++", "-O1", "-std=c++17", f"-I{llama}/include", f"-I{llama}/ggml/include", str(source),
         f"-L{libraries}", "-lllama", "-lggml", "-lggml-base", f"-Wl,-rpath,{libraries}", "-o", str(program)],
        check=True,
    )  # fmt: skip
    return program


def distance(ours, theirs):
    """The largest difference relative to the standard deviation of the reference."""
    return float(np.abs(ours - theirs).max() / theirs.std())


def joined(tokens):
    return ",".join(str(int(token)) for token in tokens)


class Checker:
    def __init__(self, oxidize, program, work, limit):
        self.oxidize, self.program, self.work, self.limit = oxidize, program, work, limit

    def llama(self, model, kind, inputs, adapter="-"):
        out = self.work / "theirs.bin"
        command = [self.program, model, adapter, kind, out, *map(joined, inputs)]
        run = subprocess.run(command, capture_output=True, text=True)
        if run.returncode != 0:
            message = run.stderr.strip().splitlines()
            raise RuntimeError(f"llama.cpp ({run.returncode}): {message[-1] if message else ''}")
        return np.fromfile(out, dtype=np.float32).reshape(len(inputs[-1]), -1)

    def ours(self, *arguments):
        run = subprocess.run([self.oxidize, *arguments], capture_output=True, text=True)
        if run.returncode != 0:
            raise RuntimeError(run.stderr.strip().splitlines()[-1])

    def check(self, directory, kind):
        """Distance of our logits from llama.cpp's or PyTorch's, and a description of the reference."""
        model = self.work / "model.gguf"
        # llama.cpp has rules for some model names, which must not apply to the golden models.
        neutral = self.work / "golden"
        neutral.unlink(missing_ok=True)
        neutral.symlink_to(directory)
        self.ours("convert", neutral, "-o", model, "--type", "F32")
        reference = load_file(directory / "ref.safetensors")
        tokens = reference["tokens_0"]
        if kind == "encoder" and "hidden_0" in reference:
            hidden = reference["hidden_0"].reshape(len(tokens), -1)
            return distance(self.llama(model, "hidden", [tokens]), hidden), "PyTorch's hidden states"
        if kind == "encdec":
            decoder = reference["decoder_tokens_0"]
            logits = reference["logits_0"].reshape(len(decoder), -1)
            return distance(self.llama(model, "logits", [tokens, decoder]), logits), "PyTorch's logits"
        out = self.work / "ours.npy"
        exact = ["-ctk", "f32", "-ctv", "f32"]
        self.ours("logits", "-m", model, "--tokens", joined(tokens), "-o", out, *exact)
        theirs = self.llama(model, "logits", [tokens])
        apart = distance(np.load(out), theirs)
        if apart > self.limit:
            # If llama.cpp differs in the same way on its own converter's file, the conversion is right.
            golden = self.llama(directory / "model.gguf", "logits", [tokens])
            if distance(theirs, golden) < 1e-5:
                return 0.0, f"its logits of the golden file; {apart:.1e} from ours"
        return apart, "our logits"


    def check_adapter(self, directory):
        """Compares a random PEFT adapter, as a GGUF adapter in llama.cpp and merged by `oxidize merge`, with the base
        into which NumPy merged it."""
        rng = np.random.default_rng(3)
        weights = {name: data.astype(np.float32) for name, data in load_file(directory / "model.safetensors").items()}
        rank, alpha, adapter = 4, 8, {}
        for name, weight in weights.items():
            module = name.removesuffix(".weight")
            if not module.endswith("_proj"):
                continue
            a, b = (0.1 * rng.normal(size=size) for size in ((rank, weight.shape[1]), (weight.shape[0], rank)))
            for letter, matrix in (("A", a), ("B", b)):
                adapter[f"base_model.model.{module}.lora_{letter}.weight"] = matrix.astype(np.float32)
            weights[name] = weight + (alpha / rank * b @ a).astype(np.float32)
        peft, merged = self.work / "peft", self.work / "merged"
        for work in (peft, merged):
            work.mkdir(exist_ok=True)
        save_file(adapter, peft / "adapter_model.safetensors")
        (peft / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": rank, "lora_alpha": alpha}))
        save_file(weights, merged / "model.safetensors")
        for name in ("config.json", "tokenizer.json", "tokenizer.model", "tokenizer_config.json"):
            if (directory / name).exists():
                shutil.copy(directory / name, merged / name)
        files = {name: self.work / f"{name}.gguf" for name in ("base", "adapter", "expected", "merged")}
        self.ours("convert", directory, "-o", files["base"], "--type", "F32")
        self.ours("convert", merged, "-o", files["expected"], "--type", "F32")
        self.ours("convert", peft, "-o", files["adapter"], "--base", files["base"], "--type", "F32")
        self.ours("merge", files["base"], files["merged"], "--lora", peft)
        tokens = [load_file(directory / "ref.safetensors")["tokens_0"]]
        expected = self.llama(files["expected"], "logits", tokens)
        adapted = self.llama(files["base"], "logits", tokens, files["adapter"])
        return max(distance(adapted, expected), distance(self.llama(files["merged"], "logits", tokens), expected))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--oxidize", type=pathlib.Path, default=ROOT / "target" / "release" / "oxidize")
    parser.add_argument("--llama", type=pathlib.Path, required=True, help="a built checkout of llama.cpp")
    parser.add_argument("--only", default="", help="only models whose names contain this")
    parser.add_argument("--limit", type=float, default=1e-2)
    arguments = parser.parse_args()
    shared = pathlib.Path(os.environ.get("OXIDIZE_SHARED", ROOT.parent / "shared"))
    failures = 0
    with tempfile.TemporaryDirectory() as temporary:
        work = pathlib.Path(temporary)
        checker = Checker(arguments.oxidize, compile_program(arguments.llama, work), work, arguments.limit)
        print(f"{'model':24} {'architecture':16} {'distance':>9}  from")
        for collection in ["golden", "golden-extra"]:
            index = shared / collection / "INDEX.tsv"
            for row in csv.DictReader(open(index), delimiter="\t"):
                name, arch, status = row["name"], row["gguf_arch"], row["status"]
                directory = shared / collection / name
                # Skip models that llama.cpp does not support, or computes differently from their training.
                known = arch != "-" and status == "gold" and not name.endswith("-lcsem")
                if not known or arguments.only not in name:
                    continue
                kind = "lm" if name == "gpt2" else row["kind"]
                try:
                    apart, what = checker.check(directory, kind)
                except RuntimeError as error:
                    if "architecture" in str(error) and "is not supported" in str(error):
                        print(f"{name:24} {arch:16} {'-':>9}  does not run here")
                        continue
                    print(f"{name:24} {arch:16} {'FAILED':>9}  {error}")
                    failures += 1
                    continue
                verdict = "" if apart <= arguments.limit else "  ABOVE LIMIT"
                failures += bool(verdict)
                print(f"{name:24} {arch:16} {apart:9.1e}  {what}{verdict}")
        for name in ["llama2", "qwen3", "gemma2"]:
            if arguments.only in name:
                apart = checker.check_adapter(shared / "golden" / name)
                failures += apart > arguments.limit
                print(f"{name:24} {'adapter':16} {apart:9.1e}  weights merged by NumPy")
    print("all agree" if failures == 0 else f"{failures} do not agree")
    return failures != 0


if __name__ == "__main__":
    sys.exit(main())
