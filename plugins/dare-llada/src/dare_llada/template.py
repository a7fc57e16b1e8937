"""LLaDA's chat template, for tokenizer folders that have none.

Every turn is ``<|start_header_id|>ROLE<|end_header_id|>``, two line breaks, the stripped content and
``<|eot_id|>``; the first turn follows ``<|startoftext|>``. An assistant header is always left open at the end,
also after an assistant turn: prompts want that, and complete conversations are never rendered with it.
"""

from __future__ import annotations

# Line breaks stand in expressions: Jinja drops one that ends the template.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if loop.first %}<|startoftext|>{% endif %}"
    "<|start_header_id|>{{ message['role'] }}<|end_header_id|>{{ '\n\n' }}"
    "{{ message['content'] | trim }}<|eot_id|>"
    "{% endfor %}"
    "<|start_header_id|>assistant<|end_header_id|>{{ '\n\n' }}"
)
