"""lm-evaluation-harness against a running server: lm_eval_client.py URL QUESTIONS.jsonl

QUESTIONS has objects with the fields `ctx`, `endings` and `label`. Prints the accuracy as JSON. Nothing is downloaded:
the dataset is the file, and the tokenizer is the server's own.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

os.environ.update(HF_DATASETS_OFFLINE="1", HF_HUB_OFFLINE="1", HF_DATASETS_DISABLE_PROGRESS_BARS="1")
try:
    import lm_eval
    from lm_eval.tasks import TaskManager
except ImportError as missing:
    print(missing)
    sys.exit(77)

TASK = """
task: questions
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}, cache_dir: {cache}}}
test_split: test
output_type: multiple_choice
doc_to_text: ctx
doc_to_choice: endings
doc_to_target: label
target_delimiter: " "
metric_list:
  - metric: acc
  - metric: acc_norm
"""

url, file = sys.argv[1:3]
with tempfile.TemporaryDirectory() as directory:
    task = TASK.format(file=json.dumps(str(Path(file).resolve())), cache=json.dumps(directory))
    (Path(directory) / "questions.yaml").write_text(task)
    results = lm_eval.simple_evaluate(
        model="local-completions",
        model_args={"model": "", "base_url": f"{url}/v1/completions", "tokenizer_backend": "remote", "num_concurrent": 4,
                    "max_retries": 1},
        tasks=["questions"],
        task_manager=TaskManager(include_path=directory, include_defaults=False),
        bootstrap_iters=0,
    )
scores = results["results"]["questions"]
n = results["n-samples"]["questions"]["effective"]
print(json.dumps({"questions": n, "accuracy": scores["acc,none"], "accuracy_normalized": scores["acc_norm,none"]}))
