"""oxidize takes the place of llama_cpp before any package imports it."""

import oxidize

oxidize.install_as_llama_cpp()
