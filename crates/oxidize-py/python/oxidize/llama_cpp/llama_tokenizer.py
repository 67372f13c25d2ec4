"""Tokenizers: the model's own, and those of transformers."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .llama import Llama


class BaseLlamaTokenizer(abc.ABC):
    """Turns bytes into tokens and back."""

    @abc.abstractmethod
    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = True) -> list[int]:
        """The tokens of a text in UTF-8."""

    @abc.abstractmethod
    def detokenize(self, tokens: list[int], prev_tokens: list[int] | None = None, special: bool = False) -> bytes:
        """The bytes of tokens that follow ``prev_tokens``."""


class LlamaTokenizer(BaseLlamaTokenizer):
    """The tokenizer of a model."""

    def __init__(self, llama: Llama) -> None:
        self._model = llama._model

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = True) -> list[int]:
        return self._model.tokenize(text, add_bos=add_bos, special=special)

    def detokenize(self, tokens: list[int], prev_tokens: list[int] | None = None, special: bool = False) -> bytes:
        return self._model.detokenize(tokens, special=special)

    def encode(self, text: str, add_bos: bool = True, special: bool = True) -> list[int]:
        """The tokens of a text."""
        return self.tokenize(text.encode("utf-8", errors="ignore"), add_bos=add_bos, special=special)

    def decode(self, tokens: list[int]) -> str:
        """The text of tokens."""
        return self.detokenize(tokens).decode("utf-8", errors="ignore")

    @classmethod
    def from_ggml_file(cls, path: str) -> LlamaTokenizer:
        """The tokenizer of a model file."""
        from .llama import Llama

        return cls(Llama(model_path=path, vocab_only=True))


class LlamaHFTokenizer(BaseLlamaTokenizer):
    """A tokenizer of the package transformers."""

    def __init__(self, hf_tokenizer: Any) -> None:
        self.hf_tokenizer = hf_tokenizer

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = True) -> list[int]:
        tokens: list[int] = self.hf_tokenizer.encode(text.decode("utf-8", errors="ignore"), add_special_tokens=special)
        return tokens

    def detokenize(self, tokens: list[int], prev_tokens: list[int] | None = None, special: bool = False) -> bytes:
        def decode(tokens: list[int]) -> bytes:
            text: str = self.hf_tokenizer.decode(tokens, skip_special_tokens=not special)
            return text.encode("utf-8", errors="ignore")

        if prev_tokens is None:
            return decode(tokens)
        return decode(list(prev_tokens) + list(tokens))[len(decode(list(prev_tokens))) :]

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str) -> LlamaHFTokenizer:
        """The tokenizer of a model of the Hugging Face hub."""
        try:
            from transformers import AutoTokenizer
        except ImportError:
            raise ImportError(
                "The `transformers` library is required to use the `HFTokenizer`. "
                "You can install it with `pip install transformers`."
            ) from None
        return cls(AutoTokenizer.from_pretrained(pretrained_model_name_or_path))
