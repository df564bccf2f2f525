"""`litellm-compaction demo`: one real compaction, from the client's request to the model's next answer."""
