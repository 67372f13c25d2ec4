"""PyTorch's outputs for golden fixtures."""

import contextlib
import json
import pathlib
import tempfile
import warnings

import numpy as np
import torch
import transformers
from safetensors.torch import save_file

import stand_ins
from fixtures import tensors

warnings.filterwarnings("ignore")
transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
torch.set_num_threads(1)


def outputs(fixture):
    """Outputs of each case: arrays by name, with all positions of the input."""
    weights = {name: torch.from_numpy(array.copy()) for name, array in tensors(fixture).items()}
    config = fixture["files"]["config.json"]
    reference = fixture["reference"]
    if stand_in := getattr(stand_ins, reference, None):
        run = stand_in(config, weights)
    else:
        run = runner(load(reference, config, weights))
    results = []
    for case in fixture["cases"]:
        with torch.no_grad():
            result = run(case)
        results.append({name: array.detach().float().numpy() for name, array in result.items()})
        if pooling := fixture["files"].get("1_Pooling/config.json"):
            results[-1]["pooled"] = pooled(results[-1]["hidden"], pooling)
    return results


def load(class_name, config, weights, with_eager=True):
    """A model of `transformers` with exactly these weights, in f32 with eager attention."""
    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        (directory / "config.json").write_text(json.dumps(config))
        contiguous = {name: weight.contiguous() for name, weight in weights.items()}
        save_file(contiguous, directory / "model.safetensors", {"format": "pt"})
        model, info = getattr(transformers, class_name).from_pretrained(
            directory,
            dtype=torch.float32,
            output_loading_info=True,
            **({"attn_implementation": "eager"} if with_eager else {}),
        )
    problems = {kind: sorted(names)[:5] for kind, names in info.items() if names}
    assert not problems, f"{class_name}: {problems}"
    return model.eval()


def runner(model, **arguments):
    """A function from a case to the outputs of a model."""
    encoder_decoder = getattr(model.config, "is_encoder_decoder", False)

    def run(case):
        tokens = torch.tensor(case["tokens"])[None]
        given = dict(arguments)
        if encoder_decoder:
            given["decoder_input_ids"] = torch.tensor(case["decoder_tokens"])[None]
        found = model(tokens, **given)
        result = {}
        if getattr(found, "logits", None) is not None:
            result["logits"] = found.logits[0]
            # A classifier has one row of scores, and hidden states of its own.
            if found.logits.ndim == 2:
                result["logits"] = found.logits
                result["hidden"] = model.base_model(tokens).last_hidden_state[0]
        else:
            result["hidden"] = found.last_hidden_state[0]
        if "pair" in case:
            # The first third is one text, the rest another.
            second = torch.arange(tokens.shape[1]) >= tokens.shape[1] // 3
            result["pair"] = model(tokens, token_type_ids=second[None].long()).logits
        return result

    return run


def pooled(hidden, config):
    """The embedding of a text by its hidden states."""
    if config["pooling_mode_cls_token"]:
        return hidden[0]
    if config.get("pooling_mode_lasttoken"):
        return hidden[-1]
    assert config["pooling_mode_mean_tokens"], config
    return hidden.astype(np.float64).mean(0).astype(np.float32)
