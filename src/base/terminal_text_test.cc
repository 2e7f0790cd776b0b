#include "base/terminal_text.h"

#include <gtest/gtest.h>

namespace keepstep {
namespace {

TEST(TerminalText, what_is_only_read_stays) {
  for (const char* text : {"", "plain", "lines\nand\ttabs", "grüße, 東京, 😀, é", "[/INST] [bold]"}) {
    EXPECT_EQ(terminal_text(text), text);
  }
}

TEST(TerminalText, what_a_terminal_would_obey_is_shown) {
  EXPECT_EQ(terminal_text("\x1b]0;title\x07 \x1b[2J\r\x7f"), "\\x1b]0;title\\x07 \\x1b[2J\\x0d\\x7f");
  EXPECT_EQ(terminal_text(std::string("a\0b", 3)), "a\\x00b");
  EXPECT_EQ(terminal_text("\xc2\x9b"
                          "31m"),
            "\\x9b31m");  // CSI as one character
  EXPECT_EQ(terminal_text("\xe2\x80\xae"
                          "txt.exe"),
            "\\u202etxt.exe");
  EXPECT_EQ(terminal_text("\xe2\x81\xa6|\xe2\x80\x8f|\xd8\x9c"), "\\u2066|\\u200f|\\u061c");
}

TEST(TerminalText, bytes_that_are_no_utf8_are_shown) {
  EXPECT_EQ(terminal_text("\xff"), "\\xff");
  EXPECT_EQ(terminal_text("\x9b"
                          "31m"),
            "\\x9b31m");                                        // CSI as a byte of ISO 8859
  EXPECT_EQ(terminal_text("\xc0\x9b"), "\\xc0\\x9b");           // not the shortest form
  EXPECT_EQ(terminal_text("\xed\xa0\x80"), "\\xed\\xa0\\x80");  // a surrogate
  EXPECT_EQ(terminal_text("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");
  EXPECT_EQ(terminal_text("\xe2\x80"), "\\xe2\\x80");  // cut off
  EXPECT_EQ(terminal_text("\xe2\x80x"), "\\xe2\\x80x");
}

}  // namespace
}  // namespace keepstep
