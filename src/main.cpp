#include "cli/cli.h"

int main(int argc, char** argv) { return shardpipe::cli_main(argc, argv); }
