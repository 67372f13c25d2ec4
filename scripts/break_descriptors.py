#!/usr/bin/env python3
"""Breaks descriptors of architectures and the builder on purpose, and fails if the golden models still pass.

Each edit below changes one property of one family in a copy of the checkout. The test of golden models must then
fail, and must name a model of that family. Edits of different families share a build. The copy has nothing beside
it, so only fixtures of the project can find the fault.

Usage: break_descriptors.py [--list] [NAME ...]
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
# The build output in it is kept between runs.
COPY = ROOT / "target" / "broken"
TEST = ["test", "--workspace", "--test", "archs", "--", "--exact", "outputs_match_pytorch"]


class Edit(NamedTuple):
    """Replaces `old`, which follows `after` in a file of `crates/oxidize-core/src`."""

    name: str
    file: str
    after: str
    old: str
    new: str
    # Models that only this edit of its batch affects; one of them must fail.
    models: tuple[str, ...]


def prop(name: str, file: str, static: str, line: str, *models: str) -> Edit:
    """Adds a property to a descriptor that has the default."""
    end = "    ..BASE\n" if file not in FAMILY_BASE else FAMILY_BASE[file]
    return Edit(name, f"arch/{file}.rs", f"static {static}: Arch = Arch {{", end, f"    {line}\n{end}", models)


def change(name: str, file: str, static: str, old: str, new: str, *models: str) -> Edit:
    """Changes a property of a descriptor, or of one that several families share."""
    return Edit(name, f"arch/{file}.rs", f" {static}: ", old, new, models)


FAMILY_BASE = {"gemma": "    ..GEMMA_BASE\n"}

# Families in one list differ, so that each failure belongs to one edit.
BATCHES = [
    [
        # Norms.
        change(
            "norm placement",
            "glm",
            "GLM4",
            '(ATTN_POST_NORM, "model.layers.{}.post_self_attn_layernorm"),\n        (FFN_POST_NORM, "model.layers.{}.post_mlp_',
            '(FFN_POST_NORM, "model.layers.{}.post_self_attn_layernorm"),\n        (ATTN_POST_NORM, "model.layers.{}.post_mlp_',
            "glm4",
        ),
        change("norm kind", "cohere", "OLMO", "norm: NormKind::Layer", "norm: NormKind::Rms", "olmo"),
        change("norm after RoPE", "llama", "HUNYUAN_BASE", "QkNorm::AfterRope", "QkNorm::BeforeRope", "hunyuan-dense", "hunyuan-moe"),
        prop("norm before RoPE", "qwen", "QWEN3", "qk_norm: super::QkNorm::AfterRope,", "qwen3", "qwen3-tied"),
        change("norm of values", "gemma", "GEMMA_N_BASE", "value_norm: true", "value_norm: false", "gemma3n", "gemma4-dense"),
        change("norms in the mixer", "mamba", "FALCON_MAMBA", "inner_norms: true", "inner_norms: false", "falcon-mamba"),
        # Positions.
        change("RoPE layout", "llama", "LLAMA", "rope: PERMUTED", "rope: INTERLEAVED", "llama2"),
        change("RoPE layers", "llama", "SMOLLM3", "AllButEvery(4)", "AllButEvery(3)", "smollm3"),
        change("RoPE in full layers", "cohere", "COHERE2", "RopeLayers::Windowed", "RopeLayers::All", "cohere2"),
        change("ALiBi", "llama", "BAICHUAN", "IfLayers(40, 8.0)", "IfLayers(40, 4.0)", "baichuan-alibi"),
        change("learned positions", "bert", "ROBERTA", "position_offset: 2", "position_offset: 1", "roberta", "xlm-roberta"),
        # Attention.
        change("window pattern", "gemma", "GEMMA2", "AllButEvery(2)", "AllButEvery(3)", "gemma2"),
        change("first window", "experts", "LAGUNA", "FullFirst(4)", "AllButEvery(4)", "laguna"),
        change("attention scale", "t5", "STACK", "QueryScale::One", "QueryScale::HeadDim", "t5", "t5-v1.1"),
        # Feed-forward layers and experts.
        change("gate of experts", "experts", "AFMOE", "Gating::Sigmoid", "Gating::Softmax", "afmoe"),
        change("weights of experts", "qwen", "QWEN2MOE", "renormalize: false", "renormalize: true", "qwen2-moe"),
        change("group of experts", "deepseek", "DEEPSEEK_V2", "GroupScore::Best", "GroupScore::TwoBest", "deepseek-v2-grouped"),
        change("router weight", "llama", "LLAMA4", "_on_input: true", "_on_input: false", "llama4-text"),
        change("limit of gates", "experts", "GPT_OSS", "Some(7.0)", "None", "gpt-oss"),
        change("jitter of the router", "phi", "PHIMOE_HF", "jitter: 0.01", "jitter: 0.1", "phimoe"),
        change("GLU activation", "llama", "ARCEE", "Activation::ReluSquared", "Activation::Relu", "arcee"),
        change("sparsity", "gemma", "GEMMA3N", "unbiased_sparsity: true", "unbiased_sparsity: false", "gemma3n-gguf"),
        # Scales, layouts and recurrent layers.
        prop("embedding scale", "gemma", "GEMMA", "scales: super::Scales::Given,", "gemma"),
        change("scales", "deepseek", "MINICPM3", "Scales::MiniCpm", "Scales::Given", "minicpm3"),
        change("layout of q, k and v", "llama", "INTERNLM2", "QkvLayout::Grouped", "QkvLayout::Concatenated", "internlm2"),
        change("sharing of keys", "qwen", "QWEN35", "KeySharing::Interleaved", "KeySharing::Grouped", "qwen35-dense"),
        change("recurrence", "rwkv", "RWKV4", "norm: NormKind::Layer", "norm: NormKind::Rms", "rwkv4"),
    ],
    [
        # Parts of the builder that each concern one family below.
        Edit("logit softcap", "builder/decoder.rs", "pub fn build", "logits = g.softcap(logits, hp.logit_softcap);", "", ("gemma2",)),
        Edit("gate of the shared expert", "builder/moe.rs", "fn add_shared_experts", "Activation::Sigmoid", "Activation::Silu", ("qwen2-moe",)),
        Edit("selection bias", "builder/moe.rs", "routing: Routing {", "selection_bias: vector(&FFN_SELECTION_BIAS)?,", "selection_bias: vector(&FFN_SELECTION_BIAS)?.filter(|_| false),", ("ernie45-moe", "minimax-m2")),
        Edit("scale of experts", "builder/moe.rs", "routing: Routing {", "scale: moe.scale,", "scale: 1.0,", ("deepseek-v2",)),
        Edit("SSM step bias", "builder/mamba.rs", "fn mamba2", ".add_bias(&mut linears[4], &SSM_DT_BIAS, self.layer)?;", ".add_bias(&mut linears[3], &SSM_DT_BIAS, self.layer).ok();", ("mamba2",)),
        Edit("attention sinks", "builder/attention.rs", "AttentionOp {", ".vector_weight(&ATTN_SINKS, self.layer, params.n_heads)?,", ".vector_weight(&ATTN_SINKS, self.layer, params.n_heads)?.filter(|_| false),", ("gpt-oss",)),
        Edit("residual scale", "builder/decoder.rs", "fn add_residual", "self.hp.residual_scale", "1.0", ("granite",)),
        Edit("clamp of q, k and v", "builder/decoder.rs", "fn clamp", "Some(limit) =>", "Some(limit) if limit > 1e9 =>", ("dbrx",)),
        Edit("relative biases", "builder/attention.rs", "AttentionOp {", "relative: self.relative_bias()?,", "relative: self.relative_bias()?.filter(|_| self.layer == 0),", ("t5",)),
    ],
    [
        Edit("attention softcap", "builder/attention.rs", "AttentionOp {", "softcap: self.hp.attention_softcap,", "softcap: None,", ("gemma2",)),
        Edit("norm before the gate", "builder/mamba.rs", "fn mamba2", "if params.norm_before_gate {", "if !params.norm_before_gate {", ("bamba", "mamba2")),
        Edit("temperature of queries", "builder/attention.rs", "fn scale_queries", "if self.params().temperature =>", "if false && self.params().temperature =>", ("llama4-text", "ministral3")),
        Edit("parallel layers", "builder/decoder.rs", "fn parallel", "self.norm(x, &FFN_NORM)?", "self.norm(attended, &FFN_NORM)?", ("gpt-neox",)),
        Edit("unweighted norms of q and k", "arch/deepseek.rs", "static KIMI_LINEAR:", "rope_layers: RopeLayers::None,", "rope_layers: RopeLayers::All,", ("kimi-linear",)),
    ],
]


def edits() -> list[Edit]:
    return [edit for batch in BATCHES for edit in batch]


def copy_checkout() -> None:
    """Copies the files that git knows, without changing the times of those that are the same."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    wanted = {name for name in listed.split("\0") if name and (ROOT / name).is_file()}
    for name in wanted:
        source, target = ROOT / name, COPY / name
        if not target.is_file() or target.read_bytes() != source.read_bytes():
            target.parent.mkdir(parents=True, exist_ok=True)
            # A new file keeps its time; one that is put back is newer than what was built of the edit.
            copy = shutil.copyfile if target.exists() else shutil.copy2
            copy(source, target)
    for crate in (COPY / "crates").rglob("*.rs"):
        if str(crate.relative_to(COPY)) not in wanted:
            crate.unlink()


def apply(edit: Edit) -> None:
    path = COPY / "crates/oxidize-core/src" / edit.file
    text = path.read_text()
    start = text.find(edit.after)
    at = text.find(edit.old, start)
    if start < 0 or at < 0:
        sys.exit(f"{edit.file}: no {edit.old!r} after {edit.after!r}; mend the edit {edit.name!r}")
    path.write_text(text[:at] + edit.new + text[at + len(edit.old) :])


def failed_models() -> set[str] | None:
    """Models whose outputs are wrong; `None` if all are right."""
    cargo = os.environ.get("CARGO", "cargo")
    environment = {**os.environ, "CARGO_TARGET_DIR": str(COPY / "target"), "OXIDIZE_SHARED": "/nonexistent"}
    run = subprocess.run([cargo, *TEST], cwd=COPY, env=environment, capture_output=True, text=True)
    output = run.stdout + run.stderr
    if "running 1 test" not in output:
        sys.exit(f"{output[-4000:]}\nthe edits do not compile")
    if run.returncode == 0:
        return None
    found = set(re.findall(r"^([\w.-]+) \((?:Directory|Gguf)\)(?::? [^\d\s]| on |: unused)", output, re.MULTILINE))
    if not found:
        sys.exit(f"{output[-4000:]}\nthe test fails without naming a model")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--list", action="store_true", help="list the edits")
    parser.add_argument("name", nargs="*", help="only these edits")
    args = parser.parse_args()
    if args.list:
        for edit in edits():
            print(f"{edit.name:32} {edit.file:24} {' '.join(edit.models)}")
        return
    unknown = set(args.name) - {edit.name for edit in edits()}
    if unknown:
        sys.exit(f"there is no edit {', '.join(sorted(unknown))}; --list lists them")
    copy_checkout()
    start = time.monotonic()
    if failed := failed_models():
        sys.exit(f"models fail without any edit: {', '.join(sorted(failed))}")
    caught, missed = 0, []
    for batch in BATCHES:
        batch = [edit for edit in batch if not args.name or edit.name in args.name]
        if not batch:
            continue
        for edit in batch:
            apply(edit)
        failed = failed_models() or set()
        copy_checkout()
        for edit in batch:
            found = sorted(model for model in failed if model in edit.models)
            print(f"{edit.name:32} {'caught by ' + ', '.join(found) if found else 'NOT CAUGHT'}", flush=True)
            caught += bool(found)
            missed += [] if found else [edit.name]
    print(f"{caught} of {caught + len(missed)} edits caught in {(time.monotonic() - start) / 60:.0f} min")
    if missed:
        sys.exit(f"not caught: {', '.join(missed)}; add a fixture that tells the difference")


if __name__ == "__main__":
    main()
