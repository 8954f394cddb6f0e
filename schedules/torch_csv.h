// The CSV in which PyTorch's pipelining keeps schedules (torch.distributed.pipelining): a row a rank, an action a cell,
// an empty cell where the rank is idle. Rows of passes alone, or lowered ones, with messages and gathers among them.
//
//   0F0,0F1,(0F2;3B0)OVERLAP_F_B,3I1,3W1       passes; two that run together
//   2RECV_F0,2F0,2SEND_F0,2RESHARD             lowered: movement of stage 2
//
// There are two generations of letters, told apart by what a file holds:
//                     whole backward   its input part   its weight part
//   TorchNotation::I        B                I                W
//   TorchNotation::BW       BW               B                W           the older one
// A file is of the older one if it holds a BW, or no I and a micro-batch of a stage with both a B and a W.
#pragma once
#include <string>
#include <string_view>

#include "schedules/lowered.h"

namespace shardpipe {

enum class TorchNotation : uint8_t { I, BW };

// Placement is that of the rows, the number of micro-batches that of the cells; the name is the file's, without folder
// and ending. InputError with every mistake, a line each: file, row as line, rank, cell, what was found and what is
// allowed; a file that holds both I and BW, and a stage on two ranks or none, are such.
LoweredSchedule parse_torch_csv(std::string_view text, const std::string& file);
TorchNotation notation_of_torch_csv(std::string_view text, const std::string& file);

// Cells that run together must be pairs. No idle cells: what follows from waiting is not part of a schedule.
std::string print_torch_csv(const LoweredSchedule&, TorchNotation = TorchNotation::I);
std::string print_torch_csv(const Schedule&, TorchNotation = TorchNotation::I);

}  // namespace shardpipe
