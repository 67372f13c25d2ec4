#!/usr/bin/env python3
"""Convert a llama2.c checkpoint and its tokenizer to a GGUF file in f32.

    llama2c_to_gguf.py MODEL.bin TOKENIZER.bin OUT.gguf [--name NAME]

llama2.c rotates neighboring pairs (2i, 2i+1) of a head, as GGUF's `llama` architecture does, so
the query and key rows keep their order. (Hugging Face checkpoints rotate halves and need permuting.)
"""

import argparse
import struct
from pathlib import Path

import gguf
import numpy as np

# llama2.c fixes these in code; they are not in the checkpoint.
RMS_EPSILON = 1e-5
ROPE_BASE = 10000.0
# The Llama 2 vocabulary: three special tokens, then the 256 byte tokens, then the pieces.
UNKNOWN, BOS, EOS = 0, 1, 2
FIRST_PIECE = 3 + 256


class Checkpoint:
    """Header and tensors of the original (version 0) llama2.c export."""

    def __init__(self, path: Path):
        data = path.read_bytes()
        header = struct.unpack_from("<7i", data)
        self.dim, self.ffn, self.layers, self.heads, self.kv_heads, vocab, self.context = header
        # A negative vocabulary size means that the output matrix is not the embedding matrix.
        self.vocab, self.tied = abs(vocab), vocab > 0
        if min(self.dim, self.ffn, self.layers, self.heads, self.kv_heads, self.context) <= 0:
            raise SystemExit(f"{path}: not a llama2.c checkpoint (header {header})")
        self.head_dim = self.dim // self.heads
        self._weights = np.frombuffer(data, dtype="<f4", offset=28)
        self._next = 0
        self.tensors = self._read_tensors()
        if self._next != self._weights.size:
            raise SystemExit(
                f"{path}: the header declares {self._next} weights, the file has {self._weights.size}"
            )

    def _take(self, *shape: int) -> np.ndarray:
        count = int(np.prod(shape))
        if self._next + count > self._weights.size:
            raise SystemExit(f"the checkpoint ends before {shape} at weight {self._next}")
        out = self._weights[self._next : self._next + count].reshape(shape)
        self._next += count
        return out

    def _read_tensors(self) -> dict[str, np.ndarray]:
        """Splits the weights, which are stored for all layers at once, into one tensor per layer."""
        dim, ffn, kv_dim = self.dim, self.ffn, self.kv_heads * self.head_dim
        tensors = {"token_embd.weight": self._take(self.vocab, dim)}
        for name, shape in [
            ("attn_norm", (dim,)),
            ("attn_q", (dim, dim)),
            ("attn_k", (kv_dim, dim)),
            ("attn_v", (kv_dim, dim)),
            ("attn_output", (dim, dim)),
            ("ffn_norm", (dim,)),
            ("ffn_gate", (ffn, dim)),
            ("ffn_down", (dim, ffn)),
            ("ffn_up", (ffn, dim)),
        ]:
            stacked = self._take(self.layers, *shape)
            for layer in range(self.layers):
                tensors[f"blk.{layer}.{name}.weight"] = stacked[layer]
        tensors["output_norm.weight"] = self._take(dim)
        # Rotary sines and cosines, which llama2.c itself no longer reads.
        self._take(2, self.context, self.head_dim // 2)
        if not self.tied:
            tensors["output.weight"] = self._take(self.vocab, dim)
        return tensors


def read_vocabulary(path: Path, size: int):
    """Pieces, scores and types. llama2.c writes spaces for U+2581, and other texts for BOS and EOS."""
    data = path.read_bytes()
    pieces, scores, types = [], [], []
    at = 4  # past the length of the longest piece
    for token in range(size):
        score, length = struct.unpack_from("<fi", data, at)
        piece = data[at + 8 : at + 8 + length].decode("utf-8")
        at += 8 + length
        if token == UNKNOWN:
            piece, kind = "<unk>", gguf.TokenType.UNKNOWN
        elif token in (BOS, EOS):
            piece, kind = ("<s>" if token == BOS else "</s>"), gguf.TokenType.CONTROL
        elif token < FIRST_PIECE:
            # Exporters write byte tokens differently, so the id decides.
            piece, kind = f"<0x{token - 3:02X}>", gguf.TokenType.BYTE
        else:
            piece, kind = piece.replace(" ", "\u2581"), gguf.TokenType.NORMAL
        pieces.append(piece)
        scores.append(score)
        types.append(kind)
    if at != len(data):
        raise SystemExit(f"{path}: {len(data) - at} bytes after the last of {size} pieces")
    return pieces, scores, types


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--name", default="llama2.c")
    args = parser.parse_args()

    model = Checkpoint(args.model)
    pieces, scores, types = read_vocabulary(args.tokenizer, model.vocab)

    writer = gguf.GGUFWriter(args.out, "llama")
    writer.add_name(args.name)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_context_length(model.context)
    writer.add_embedding_length(model.dim)
    writer.add_block_count(model.layers)
    writer.add_feed_forward_length(model.ffn)
    writer.add_head_count(model.heads)
    writer.add_head_count_kv(model.kv_heads)
    writer.add_rope_dimension_count(model.head_dim)
    writer.add_rope_freq_base(ROPE_BASE)
    writer.add_layer_norm_rms_eps(RMS_EPSILON)
    writer.add_vocab_size(model.vocab)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(pieces)
    writer.add_token_scores(scores)
    writer.add_token_types(types)
    writer.add_unk_token_id(UNKNOWN)
    writer.add_bos_token_id(BOS)
    writer.add_eos_token_id(EOS)
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)
    for name, tensor in model.tensors.items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
