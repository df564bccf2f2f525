"""Text of a conversation on an operator's terminal."""

from litellm_compaction.cli.console import make_console, one_line, printable


def test_escape_sequences_do_not_reach_the_terminal() -> None:
    """What a tool printed must not move the operator's cursor; lone surrogates must not break the encoder."""
    assert printable("a\x1b[2Jb\ud800c\n\td \u00fc") == "a\ufffd[2Jb\ufffdc\n\td \u00fc"


def test_one_line_is_cut_with_a_mark() -> None:
    """Line ends become spaces, and a cut shows."""
    assert one_line("a\nb  c", 10) == "a b c"
    assert one_line("abcdef", 4) == "abc…"


def test_output_that_is_no_terminal_has_100_columns() -> None:
    """A log reads like a screen."""
    assert make_console().width == 100
