"""Dream's chat template, for tokenizer folders that have none.

ChatML: every turn is ``<|im_start|>ROLE``, a line break, the content, ``<|im_end|>`` and a line break. A
conversation without a system turn gets the default one.
"""

from __future__ import annotations

# Line breaks stand in expressions: Jinja drops one that ends the template.
CHAT_TEMPLATE = (
    "{% if messages[0]['role'] != 'system' %}"
    "<|im_start|>system{{ '\n' }}You are a helpful assistant.<|im_end|>{{ '\n' }}"
    "{% endif %}"
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] + '\n' + message['content'] }}<|im_end|>{{ '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant{{ '\n' }}{% endif %}"
)
