#include "core/pickle_tree.h"

namespace stalloc {
namespace {

constexpr std::size_t kMemoHole = 1 << 16;

}  // namespace

PickleTree::PickleTree(const Source& source) : bytes_(source), values_(bytes_) {
  run();
  bytes_.close();
  values_.finish();
  memo_ = {};
  stack_ = {};
}

void PickleTree::push(Value value) {
  if (stack_.size() == stack_.capacity()) values_.charge(stack_.capacity() * sizeof(Value));
  stack_.push_back(value);
}

void PickleTree::need_operands(std::size_t count) const {
  if (num_operands() < count) bytes_.refuse("an operation has no operand");
}

PickleTree::Value PickleTree::pop() {
  const Value value = top();
  stack_.pop_back();
  return value;
}

PickleTree::Value& PickleTree::top() {
  need_operands(1);
  return stack_.back();
}

std::size_t PickleTree::pop_mark() {
  if (marks_.empty()) bytes_.refuse("an operation has no mark");
  const std::size_t mark = marks_.back();
  marks_.pop_back();
  return mark;
}

void PickleTree::push_long(std::uint64_t num_bytes) {
  const std::string_view digits = bytes_.bytes(num_bytes);
  if (digits.size() > 8) {
    // Torch writes 64-bit numbers; the ninth byte is the sign of an unsigned one.
    push({Tag::kHuge, 0});
    return;
  }
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    value |= static_cast<std::uint64_t>(static_cast<std::uint8_t>(digits[i])) << (8 * i);
  }
  if (!digits.empty() && digits.size() < 8 && (digits.back() & 0x80) != 0) value |= ~std::uint64_t{0} << (8 * digits.size());
  const auto number = static_cast<std::int64_t>(value);
  const bool fits = number == (static_cast<std::int64_t>(value << 4) >> 4);
  push({fits ? Tag::kInt : Tag::kHuge, fits ? number : 0});
}

void PickleTree::push_number(std::string_view digits) {
  while (!digits.empty() && (digits.back() == 'L' || digits.back() == '\r')) digits.remove_suffix(1);
  const bool negative = !digits.empty() && digits.front() == '-';
  if (negative) digits.remove_prefix(1);
  if (digits.empty() || digits.size() > 4000) bytes_.refuse("a number has no digits or too many");
  std::int64_t value = 0;
  for (const char digit : digits) {
    if (digit < '0' || digit > '9') bytes_.refuse("a number has a character that is no digit");
    if (value > (std::int64_t{1} << 55)) {
      push({Tag::kHuge, 0});
      return;
    }
    value = value * 10 + (digit - '0');
  }
  push({Tag::kInt, negative ? -value : value});
}

void PickleTree::push_collected(Tag tag, std::size_t first_on_stack) {
  const Value* values = stack_.data() + first_on_stack;
  const std::size_t count = stack_.size() - first_on_stack;
  const Value made = tag == Tag::kDict ? values_.new_dict(values, count) : values_.new_list(values, count);
  stack_.resize(first_on_stack);
  push(made);
}

void PickleTree::append_from(Tag tag, std::size_t first_on_stack) {
  if (first_on_stack == 0) bytes_.refuse("an operation has no operand");
  const Value target = stack_[first_on_stack - 1];
  if (target.tag() != tag) bytes_.refuse("values are added to something that holds none");
  if (tag != Tag::kOther) values_.append(target, stack_.data() + first_on_stack, stack_.size() - first_on_stack);
  stack_.resize(first_on_stack);
}

void PickleTree::memoize(std::uint64_t at) {
  if (at > memo_.size() + kMemoHole) bytes_.refuse("a memo index is out of order");
  if (at >= memo_.size()) {
    values_.charge((static_cast<std::size_t>(at) + 1 - memo_.size()) * sizeof(Value));
    memo_.resize(static_cast<std::size_t>(at) + 1);
  }
  memo_[static_cast<std::size_t>(at)] = top();
}

PickleTree::Value PickleTree::remembered(std::uint64_t at) const {
  if (at >= memo_.size()) bytes_.refuse("a memo index was never set");
  return memo_[static_cast<std::size_t>(at)];
}

void PickleTree::run() {
  if (bytes_.byte() != 0x80) bytes_.refuse("this is no pickle");
  const std::uint8_t protocol = bytes_.byte();
  if (protocol < 2 || protocol > 5) bytes_.refuse("pickle protocol " + std::to_string(protocol) + " is not 2 to 5");
  for (std::uint8_t opcode = bytes_.byte(); opcode != '.'; opcode = bytes_.byte()) {
    if (!step(opcode)) {
      bytes_.refuse("opcode " + std::to_string(opcode) + " asks for more than plain values (a global, an object, a call)");
    }
  }
  root_ = pop();
  if (!marks_.empty() || !stack_.empty()) bytes_.refuse("the pickle ends with values left over");
}

bool PickleTree::step(std::uint8_t opcode) {
  switch (opcode) {
    case '(': marks_.push_back(stack_.size()); values_.charge(sizeof(std::size_t)); return true;
    case 'N': push({Tag::kNone, 0}); return true;
    case 0x88: push({Tag::kBool, 1}); return true;
    case 0x89: push({Tag::kBool, 0}); return true;
    case '}': push_collected(Tag::kDict, stack_.size()); return true;
    case ']': case ')': push_collected(Tag::kList, stack_.size()); return true;
    case 'l': case 't': push_collected(Tag::kList, pop_mark()); return true;
    case 'd': push_collected(Tag::kDict, pop_mark()); return true;
    case 0x85: case 0x86: case 0x87: {
      const std::size_t count = opcode - std::size_t{0x84};
      need_operands(count);
      push_collected(Tag::kList, stack_.size() - count);
      return true;
    }
    case 'a':
      need_operands(2);
      append_from(Tag::kList, stack_.size() - 1);
      return true;
    case 'e': append_from(Tag::kList, pop_mark()); return true;
    case 's':
      need_operands(3);
      append_from(Tag::kDict, stack_.size() - 2);
      return true;
    case 'u': append_from(Tag::kDict, pop_mark()); return true;
    case '0': pop(); return true;
    case '1': stack_.resize(pop_mark()); return true;
    case '2': push(top()); return true;
    default: return step_binary(opcode) || step_text(opcode);
  }
}

bool PickleTree::step_binary(std::uint8_t opcode) {
  switch (opcode) {
    case 0x95: bytes_.skip(8); return true;  // a frame: its length tells us nothing
    case 'K': push({Tag::kInt, static_cast<std::int64_t>(bytes_.byte())}); return true;
    case 'M': push({Tag::kInt, static_cast<std::int64_t>(bytes_.little_endian(2))}); return true;
    case 'J': push({Tag::kInt, static_cast<std::int32_t>(bytes_.little_endian(4))}); return true;
    case 0x8a: push_long(bytes_.byte()); return true;
    case 0x8b: push_long(bytes_.little_endian(4)); return true;
    case 'G': bytes_.skip(8); push({Tag::kOther, 0}); return true;
    case 0x8c: push(values_.new_text(bytes_.bytes(bytes_.byte()))); return true;
    case 'X': push(values_.new_text(bytes_.bytes(bytes_.little_endian(4)))); return true;
    case 0x8d: push(values_.new_text(bytes_.bytes(bytes_.little_endian(8)))); return true;
    case 'C': bytes_.skip(bytes_.byte()); push({Tag::kOther, 0}); return true;
    case 'B': bytes_.skip(bytes_.little_endian(4)); push({Tag::kOther, 0}); return true;
    case 0x8e: bytes_.skip(bytes_.little_endian(8)); push({Tag::kOther, 0}); return true;
    case 0x8f: push({Tag::kOther, 0}); return true;
    case 0x90: append_from(Tag::kOther, pop_mark()); return true;
    case 'h': push(remembered(bytes_.byte())); return true;
    case 'j': push(remembered(bytes_.little_endian(4))); return true;
    case 'q': memoize(bytes_.byte()); return true;
    case 'r': memoize(bytes_.little_endian(4)); return true;
    case 0x94: memoize(memo_.size()); return true;
    default: return false;
  }
}

bool PickleTree::step_text(std::uint8_t opcode) {
  switch (opcode) {
    case 'I': case 'L': push_number(bytes_.line()); return true;
    case 'F': bytes_.line(); push({Tag::kOther, 0}); return true;
    case 'V': push(values_.new_text(bytes_.line())); return true;
    default: return false;
  }
}

}  // namespace stalloc
