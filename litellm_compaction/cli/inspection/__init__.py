"""`litellm-compaction inspect`: what a compaction item holds, for the operator who has the keys."""
