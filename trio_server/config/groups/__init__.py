"""The declarations themselves, a module per part of the server. They hold no behaviour; `config.fields` gathers them.

Texts, defaults and rules are those of the configuration page's section 4. A default that is `None` is shown as unset.
"""
