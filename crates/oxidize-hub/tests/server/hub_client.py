"""Runs the Python package huggingface_hub on the cache of HF_HUB_CACHE.

Usage: hub_client.py FILE, which downloads a file of u/r and prints its path, or hub_client.py scan, which checks that
the scan of the cache has no warnings.
"""

import sys

try:
    import huggingface_hub
except ImportError as error:
    print(error)
    sys.exit(77)

step = sys.argv[1]
if step == "scan":
    info = huggingface_hub.scan_cache_dir()
    assert not info.warnings, [str(warning) for warning in info.warnings]
    print(sum(revision.nb_files for repo in info.repos for revision in repo.revisions), "files")
else:
    print(huggingface_hub.hf_hub_download("u/r", step))
