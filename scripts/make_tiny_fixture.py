"""Make fixtures/tiny from a golden model: its weights as F16, which is exact, a chat template, and the two shorter
PyTorch references.

Run with `pip install gguf safetensors` and the directory of the golden model; the result is checked in.
"""

import pathlib
import sys

import gguf
import numpy as np
from safetensors.numpy import load_file, save_file

SOURCE = pathlib.Path(sys.argv[1])
OUT = pathlib.Path(__file__).parent.parent / "fixtures" / "tiny"
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

reader = gguf.GGUFReader(SOURCE / "model.gguf")
OUT.mkdir(exist_ok=True)
writer = gguf.GGUFWriter(OUT / "model.gguf", reader.fields["general.architecture"].contents())
for name, field in reader.fields.items():
    if name.startswith("GGUF.") or name == "general.architecture":
        continue
    value = {"general.name": "tiny", "general.file_type": 1}.get(name, field.contents())
    kind = field.types[0]
    element = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
    writer.add_key_value(name, value, kind, element)
writer.add_chat_template(TEMPLATE)
for tensor in reader.tensors:
    data = tensor.data
    if data.ndim > 1:
        half = data.astype(np.float16)
        assert (half.astype(np.float32) == data).all()
        data = half
    writer.add_tensor(tensor.name, data)
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()

reference = load_file(SOURCE / "ref.safetensors")
save_file({f"{kind}_{i}": reference[f"{kind}_{i}"] for kind in ("tokens", "logits") for i in (0, 1)}, OUT / "ref.safetensors")
