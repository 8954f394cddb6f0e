// The terminal behind a file descriptor, if there is one.
#pragma once

namespace shardpipe {

bool is_terminal(int file_descriptor);  // one that can move its cursor and show colours: not TERM=dumb

// Columns of its window; where it has none those of $COLUMNS, else 80.
int terminal_columns(int file_descriptor);

}  // namespace shardpipe
