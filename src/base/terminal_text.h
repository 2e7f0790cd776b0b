// Prints text from jobs, storage and other machines on a terminal without letting it control the terminal.
//
// Control characters make a terminal move the cursor, set titles, or send input as if the user had typed it. Characters
// that change the writing direction can make text look like different text. python/keepstep/_terminal.py does the same.
#pragma once

#include <string>
#include <string_view>

namespace keepstep {

// `text` with escapes (\x1b, \u202e) for the characters that control a terminal: C0 (except tab and newline), delete,
// C1, and the marks, embeddings, overrides and isolates of bidirectional text (UAX 9). Bytes that are not valid UTF-8
// become \xff.
std::string terminal_text(std::string_view text);

}  // namespace keepstep
