// A program as text, a line an action, and back: parse(print(p)) == p. Golden files in tests/programs/ are made of it.
//
//   program
//   group 0 forward 0>1 : 0 1
//   group 1 gather 0 : 0 replicas
//   rank 0 arena 81920
//   buffer saved b1 m0 : 4096 @ 8192
//   buffer shard g0 resident : 1024 @ 0
//   gather       unshard g1 with "gather 0" #0   shard g1 -> parameters g1.1
//   compute      F b1 m0   parameters g1.1, activation b1 m0 -> activation b2 m0, saved b1 m0   waits 4
//
// Names are by meaning: b block, g parameter group, m micro-batch, .n which copy or piece, stored what lies in the
// store. "+name" after the arrow is added to,
// not overwritten.
#pragma once
#include <string>
#include <string_view>

#include "program/program.h"

namespace shardpipe {

std::string to_string(Kind);
std::string to_string(Lane);
std::string to_string(Role);
std::string name_of(const Buffer&);                       // "activation b3 m1"
std::string name_of(const Action&);                       // "F b3 m1", "unshard g2", "reduce-scatter g2 m0"
std::string describe(const RankProgram&, const Action&);  // its whole line, without waits

enum class Detail : uint8_t {
  Actions,
  Addresses
};  // Actions leaves out buffers and arena: what golden files and people read
std::string print(const Program&, Detail = Detail::Addresses);
Program parse_program(
    std::string_view text);  // of Detail::Addresses; InputError that names line, what was found and what is allowed

}  // namespace shardpipe
