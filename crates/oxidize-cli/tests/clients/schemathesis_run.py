"""Requests generated from the OpenAPI document: schemathesis_run.py URL"""

import importlib.util
import subprocess
import sys
import tempfile

if importlib.util.find_spec("schemathesis") is None:
    print("No module named 'schemathesis'")
    sys.exit(77)

command = [
    sys.executable, "-m", "schemathesis.cli", "run", f"{sys.argv[1]}/openapi.json",
    "--max-examples", "10", "--max-time", "60", "--generation-deterministic", "--request-timeout", "120", "--phases", "examples,coverage,fuzzing",
    "--checks", "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance",
]
# schemathesis keeps state in the working directory; each run starts without.
with tempfile.TemporaryDirectory() as directory:
    sys.exit(subprocess.run(command, cwd=directory).returncode)
