// Changes inputs: a few random edits, or a piece of another one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/draw.h"

namespace stalloc {

using Bytestring = std::vector<std::uint8_t>;

class Mutator {
 public:
  // `words` are pieces that the target's inputs are made of.
  Mutator(Draw& draw, std::vector<std::string> words) : draw_(draw), words_(std::move(words)) {}

  Bytestring mutated(const Bytestring& input, const Bytestring& other);

 private:
  void edit(Bytestring& input, const Bytestring& other);
  void insert(Bytestring& input, const std::uint8_t* piece, std::size_t size);

  Draw& draw_;
  std::vector<std::string> words_;
};

}  // namespace stalloc
