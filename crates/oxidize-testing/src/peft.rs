//! A LoRA adapter for the tiny model.

use std::path::Path;

/// Writes a rank-2 adapter of the first layer's query and output projections to a directory, in PEFT's format.
pub fn write_peft(directory: &Path) {
    const WIDTH: usize = 64;
    const RANK: usize = 2;
    let mut header = serde_json::Map::new();
    let mut data = Vec::new();
    let mut state = 1u32;
    for projection in ["q_proj", "o_proj"] {
        for (half, shape) in [("lora_A", [RANK, WIDTH]), ("lora_B", [WIDTH, RANK])] {
            let start = data.len();
            for _ in 0..RANK * WIDTH {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let value = (state >> 8) as f32 / (1 << 24) as f32 - 0.5;
                data.extend_from_slice(&(2.0 * value).to_le_bytes());
            }
            header.insert(
                format!("base_model.model.model.layers.0.self_attn.{projection}.{half}.weight"),
                serde_json::json!({ "dtype": "F32", "shape": shape, "data_offsets": [start, data.len()] }),
            );
        }
    }
    let header = serde_json::to_vec(&header).unwrap();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header);
    file.extend(data);
    std::fs::write(directory.join("adapter_model.safetensors"), file).unwrap();
    let config = r#"{ "peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj", "o_proj"] }"#;
    std::fs::write(directory.join("adapter_config.json"), config).unwrap();
}
