// Reads a pickle of plain values (dicts, lists, tuples, texts, numbers) and refuses everything else.
//
// No name in a file is ever looked up and no object is ever built: the opcodes for that are errors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "core/pickle_bytes.h"
#include "core/pickle_values.h"

namespace stalloc {

class PickleTree {
 public:
  using Tag = PickleValues::Tag;
  using Value = PickleValues::Value;
  using Items = PickleValues::Items;
  using Source = PickleBytes::Source;

  // Throws Error on anything that is no complete pickle of plain values, or that needs much more memory than
  // its bytes.
  explicit PickleTree(const Source& source);

  Value root() const noexcept { return root_; }
  const std::string& text(Value value) const { return values_.text(value); }
  Items items(Value value) const noexcept { return values_.items(value); }
  Value get(Value dict, std::string_view key) const noexcept { return values_.get(dict, key); }

 private:
  void run();
  bool step(std::uint8_t opcode);
  bool step_binary(std::uint8_t opcode);
  bool step_text(std::uint8_t opcode);

  // The values above the last mark are an operation's to take; those below belong to whoever set the mark.
  std::size_t num_operands() const noexcept { return stack_.size() - (marks_.empty() ? 0 : marks_.back()); }
  void need_operands(std::size_t count) const;
  Value pop();
  Value& top();
  std::size_t pop_mark();
  void push(Value value);
  void push_long(std::uint64_t num_bytes);
  void push_number(std::string_view digits);
  void push_collected(Tag tag, std::size_t first_on_stack);
  void append_from(Tag tag, std::size_t first_on_stack);
  void memoize(std::uint64_t at);
  Value remembered(std::uint64_t at) const;

  PickleBytes bytes_;
  PickleValues values_;
  std::vector<Value> stack_;
  std::vector<std::size_t> marks_;  // sizes of the stack, rising, none above its size
  std::deque<Value> memo_;
  Value root_;
};

}  // namespace stalloc
