"""LLaDA2's chat template, for tokenizer folders that have none.

A system turn always comes first: the system text if there is one, then ``detailed thinking off``. Turns are
``<role>HUMAN</role>`` or ``<role>ASSISTANT</role>``, the content and ``<|role_end|>``; tool results are
``OBSERVATION``. An open ``<role>ASSISTANT</role>`` asks for the answer.
"""

from __future__ import annotations

# Line breaks stand in expressions: Jinja drops one that ends the template.
CHAT_TEMPLATE = (
    "<role>SYSTEM</role>"
    "{% if messages and messages[0]['role'] == 'system' %}{{ messages[0]['content'] + '\n' }}{% endif %}"
    "detailed thinking off<|role_end|>"
    "{% for message in messages %}"
    "{% if message['role'] == 'user' %}<role>HUMAN</role>{{ message['content'] }}<|role_end|>"
    "{% elif message['role'] == 'assistant' %}<role>ASSISTANT</role>{{ message['content'] }}<|role_end|>"
    "{% elif message['role'] == 'tool' %}<role>OBSERVATION</role>{{ message['content'] }}<|role_end|>"
    "{% elif not loop.first %}{{ raise_exception('a system turn stands first') }}"
    "{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<role>ASSISTANT</role>{% endif %}"
)

ROLES = ("system", "user", "assistant", "tool")
