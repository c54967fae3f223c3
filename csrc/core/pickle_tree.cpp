#include "core/pickle_tree.h"

#include <algorithm>
#include <cstring>

namespace stalloc {
namespace {

constexpr std::size_t kBufferBytes = std::size_t{1} << 20;
constexpr std::size_t kChunkValues = std::size_t{1} << 16;
constexpr std::size_t kLargeRun = kChunkValues / 4;  // from here on a run has memory of its own
constexpr std::size_t kFreeBytes = std::size_t{64} << 20;  // whatever the file
constexpr double kMostTimesRead = 2.6;                     // beside them
constexpr std::uint64_t kLongestText = 1 << 20;
constexpr std::size_t kMemoHole = 1 << 16;
constexpr std::size_t kMostKeys = 256;

}  // namespace

PickleTree::PickleTree(const Source& source) : source_(&source), buffer_(kBufferBytes), shapes_(1) {
  run();
  source_ = nullptr;
  buffer_ = {};
  memo_ = {};
  stack_ = {};
  shape_index_ = {};
}

void PickleTree::refuse(const std::string& what) const {
  throw Error("reading a snapshot: byte=" + std::to_string(bytes_read_ - filled_ + at_) + ", " + what +
              ". Give a file from torch.cuda.memory._dump_snapshot().");
}

// --- bytes ---

void PickleTree::fill() {
  filled_ = (*source_)(buffer_.data(), buffer_.size());
  at_ = 0;
  bytes_read_ += filled_;
  if (filled_ == 0) refuse("the file ends too early");
}

std::uint8_t PickleTree::byte() {
  if (at_ == filled_) fill();
  return static_cast<std::uint8_t>(buffer_[at_++]);
}

std::uint64_t PickleTree::little_endian(int num_bytes) {
  std::uint64_t value = 0;
  for (int i = 0; i < num_bytes; ++i) value |= static_cast<std::uint64_t>(byte()) << (8 * i);
  return value;
}

// Valid until the next read.
std::string_view PickleTree::bytes(std::uint64_t count) {
  if (count > kLongestText) refuse("a text of " + std::to_string(count) + " bytes is too long");
  if (filled_ - at_ >= count) {
    at_ += static_cast<std::size_t>(count);
    return {buffer_.data() + at_ - count, static_cast<std::size_t>(count)};
  }
  scratch_.clear();
  while (scratch_.size() < count) {
    if (at_ == filled_) fill();
    const std::size_t part = std::min(static_cast<std::size_t>(count) - scratch_.size(), filled_ - at_);
    scratch_.append(buffer_.data() + at_, part);
    at_ += part;
  }
  return scratch_;
}

std::string_view PickleTree::line() {
  scratch_.clear();
  for (char c = static_cast<char>(byte()); c != '\n'; c = static_cast<char>(byte())) {
    if (scratch_.size() >= kLongestText) refuse("a line is too long");
    scratch_.push_back(c);
  }
  return scratch_;
}

void PickleTree::skip(std::uint64_t count) {
  while (count > 0) {
    if (at_ == filled_) fill();
    const auto part = std::min<std::uint64_t>(count, filled_ - at_);
    at_ += static_cast<std::size_t>(part);
    count -= part;
  }
}

// --- memory ---

void PickleTree::charge(std::size_t bytes) {
  charged_ += bytes;
  const double allowed = static_cast<double>(kFreeBytes) + kMostTimesRead * static_cast<double>(bytes_read_);
  if (static_cast<double>(charged_) > allowed) refuse("the file needs too much memory for its size");
}

PickleTree::Value* PickleTree::new_run(std::size_t capacity) {
  charge(capacity * sizeof(Value));
  if (capacity > kLargeRun) {
    large_runs_.push_back(std::make_unique<Value[]>(capacity));
    return large_runs_.back().get();
  }
  if (chunk_used_ + capacity > chunk_capacity_) {
    chunks_.push_back(std::make_unique<Value[]>(kChunkValues));
    chunk_used_ = 0;
    chunk_capacity_ = kChunkValues;
  }
  chunk_used_ += capacity;
  return chunks_.back().get() + chunk_used_ - capacity;
}

// Large runs grow by moving: what they leave behind must not add up.
void PickleTree::drop_run(const Value* run, std::size_t capacity) {
  if (capacity <= kLargeRun) return;
  const auto it = std::find_if(large_runs_.rbegin(), large_runs_.rend(),
                               [run](const auto& owned) { return owned.get() == run; });
  if (it == large_runs_.rend()) return;
  large_runs_.erase(std::next(it).base());
  charged_ -= capacity * sizeof(Value);
}

void PickleTree::append(Container& container, const Value* values, std::size_t count) {
  if (count == 0) return;
  const std::size_t total = container.count + count;
  if (total > UINT32_MAX / 2) refuse("a list is too long");
  if (total > container.capacity) {
    const std::size_t capacity = container.count == 0 ? total : total + total / 2;
    Value* run = new_run(capacity);
    std::copy_n(container.data, container.count, run);
    drop_run(container.data, container.capacity);
    container.data = run;
    container.capacity = static_cast<std::uint32_t>(capacity);
  }
  std::copy_n(values, count, container.data + container.count);
  container.count = static_cast<std::uint32_t>(total);
}

PickleTree::Items PickleTree::items(Value value) const noexcept {
  if (value.tag() == Tag::kList) return {containers_[value.index()].data, containers_[value.index()].count};
  if (value.tag() == Tag::kDict) return {dicts_[value.index()].data, dicts_[value.index()].count};
  return {};
}

PickleTree::Value PickleTree::get(Value dict, std::string_view key) const noexcept {
  if (dict.tag() != Tag::kDict) return {};
  const Dict& found = dicts_[dict.index()];
  const Keys& keys = shapes_[found.shape];
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (keys[i].tag() == Tag::kText && text(keys[i]) == key) return found.data[i];
  }
  return {};
}

std::size_t PickleTree::KeysHash::operator()(const Keys& keys) const noexcept {
  std::uint64_t hash = 1469598103934665603u;
  for (const Value& key : keys) hash = (hash ^ key.bits()) * 1099511628211u;
  return static_cast<std::size_t>(hash ^ (hash >> 32));
}

std::uint32_t PickleTree::shape_of(std::uint32_t base, const Value* pairs, std::size_t num_pairs) {
  const Keys& last = shapes_[last_shape_];
  if (base == 0 && last.size() == num_pairs) {
    std::size_t same = 0;
    while (same < num_pairs && last[same] == pairs[2 * same]) ++same;
    if (same == num_pairs) return last_shape_;
  }
  Keys keys = shapes_[base];
  for (std::size_t i = 0; i < num_pairs; ++i) keys.push_back(pairs[2 * i]);
  const auto [it, is_new] = shape_index_.try_emplace(std::move(keys), static_cast<std::uint32_t>(shapes_.size()));
  if (is_new) {
    charge(2 * it->first.size() * sizeof(Value) + 128);
    shapes_.push_back(it->first);
  }
  return last_shape_ = it->second;
}

void PickleTree::add_to_dict(Dict& dict, const Value* pairs, std::size_t num_pairs) {
  if (num_pairs == 0) return;
  const std::size_t total = dict.count + num_pairs;
  if (total > kMostKeys) refuse("a dict has more than 256 keys");
  dict.shape = shape_of(dict.shape, pairs, num_pairs);
  Value* run = new_run(total);
  std::copy_n(dict.data, dict.count, run);
  for (std::size_t i = 0; i < num_pairs; ++i) run[dict.count + i] = pairs[2 * i + 1];
  dict.data = run;
  dict.count = static_cast<std::uint32_t>(total);
}

// --- the machine ---

void PickleTree::push(Value value) {
  if (stack_.size() == stack_.capacity()) charge(stack_.capacity() * sizeof(Value));
  stack_.push_back(value);
}

PickleTree::Value PickleTree::pop() {
  const Value value = top();
  stack_.pop_back();
  return value;
}

PickleTree::Value& PickleTree::top() {
  if (stack_.size() <= (marks_.empty() ? 0 : marks_.back())) refuse("an operation has no operand");
  return stack_.back();
}

std::size_t PickleTree::pop_mark() {
  if (marks_.empty()) refuse("an operation has no mark");
  const std::size_t mark = marks_.back();
  marks_.pop_back();
  return mark;
}

void PickleTree::push_text(std::string_view text) {
  auto it = text_index_.find(text);
  if (it == text_index_.end()) {
    charge(text.size() + 96);
    text_storage_.emplace_back(text);
    it = text_index_.emplace(text_storage_.back(), texts_.size()).first;
    texts_.push_back(&text_storage_.back());
  }
  push({Tag::kText, static_cast<std::int64_t>(it->second)});
}

void PickleTree::push_long(std::uint64_t num_bytes) {
  const std::string_view digits = bytes(num_bytes);
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
  if (digits.empty() || digits.size() > 4000) refuse("a number has no digits or too many");
  std::int64_t value = 0;
  for (const char digit : digits) {
    if (digit < '0' || digit > '9') refuse("a number has a character that is no digit");
    if (value > (std::int64_t{1} << 55)) {
      push({Tag::kHuge, 0});
      return;
    }
    value = value * 10 + (digit - '0');
  }
  push({Tag::kInt, negative ? -value : value});
}

void PickleTree::push_container(Tag tag, std::size_t first_on_stack) {
  charge(sizeof(Container));
  const Value* values = stack_.data() + first_on_stack;
  const std::size_t count = stack_.size() - first_on_stack;
  std::size_t index = 0;
  if (tag == Tag::kDict) {
    if (count % 2 != 0) refuse("a dict has a key without a value");
    index = dicts_.size();
    add_to_dict(dicts_.emplace_back(), values, count / 2);
  } else {
    index = containers_.size();
    append(containers_.emplace_back(), values, count);
  }
  stack_.resize(first_on_stack);
  push({tag, static_cast<std::int64_t>(index)});
}

void PickleTree::append_from(Tag tag, std::size_t first_on_stack) {
  if (first_on_stack == 0) refuse("an operation has no operand");
  const Value target = stack_[first_on_stack - 1];
  const Value* values = stack_.data() + first_on_stack;
  const std::size_t count = stack_.size() - first_on_stack;
  if (target.tag() != tag) refuse("values are added to something that holds none");
  if (tag == Tag::kDict) {
    if (count % 2 != 0) refuse("a dict has a key without a value");
    add_to_dict(dicts_[target.index()], values, count / 2);
  } else if (tag == Tag::kList) {
    append(containers_[target.index()], values, count);
  }
  stack_.resize(first_on_stack);
}

void PickleTree::memoize(std::uint64_t at) {
  if (at > memo_.size() + kMemoHole) refuse("a memo index is out of order");
  if (at >= memo_.size()) {
    charge((static_cast<std::size_t>(at) + 1 - memo_.size()) * sizeof(Value));
    memo_.resize(static_cast<std::size_t>(at) + 1);
  }
  memo_[static_cast<std::size_t>(at)] = top();
}

PickleTree::Value PickleTree::remembered(std::uint64_t at) const {
  if (at >= memo_.size()) refuse("a memo index was never set");
  return memo_[static_cast<std::size_t>(at)];
}

void PickleTree::run() {
  if (byte() != 0x80) refuse("this is no pickle");
  const std::uint8_t protocol = byte();
  if (protocol < 2 || protocol > 5) refuse("pickle protocol " + std::to_string(protocol) + " is not 2 to 5");
  for (std::uint8_t opcode = byte(); opcode != '.'; opcode = byte()) {
    if (!step(opcode)) {
      refuse("opcode " + std::to_string(opcode) + " asks for more than plain values (a global, an object, a call)");
    }
  }
  root_ = pop();
  if (!marks_.empty() || !stack_.empty()) refuse("the pickle ends with values left over");
}

bool PickleTree::step(std::uint8_t opcode) {
  switch (opcode) {
    case '(': marks_.push_back(stack_.size()); charge(sizeof(std::size_t)); return true;
    case 'N': push({Tag::kNone, 0}); return true;
    case 0x88: push({Tag::kBool, 1}); return true;
    case 0x89: push({Tag::kBool, 0}); return true;
    case '}': push_container(Tag::kDict, stack_.size()); return true;
    case ']': case ')': push_container(Tag::kList, stack_.size()); return true;
    case 'l': case 't': push_container(Tag::kList, pop_mark()); return true;
    case 'd': push_container(Tag::kDict, pop_mark()); return true;
    case 0x85: case 0x86: case 0x87: {
      const std::size_t count = opcode - std::size_t{0x84};
      if (stack_.size() < count + (marks_.empty() ? 0 : marks_.back())) refuse("an operation has no operand");
      push_container(Tag::kList, stack_.size() - count);
      return true;
    }
    case 'a': top(); append_from(Tag::kList, stack_.size() - 1); return true;
    case 'e': append_from(Tag::kList, pop_mark()); return true;
    case 's':
      if (stack_.size() < 3) refuse("an operation has no operand");
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
    case 0x95: skip(8); return true;  // a frame: its length tells us nothing
    case 'K': push({Tag::kInt, static_cast<std::int64_t>(byte())}); return true;
    case 'M': push({Tag::kInt, static_cast<std::int64_t>(little_endian(2))}); return true;
    case 'J': push({Tag::kInt, static_cast<std::int32_t>(little_endian(4))}); return true;
    case 0x8a: push_long(byte()); return true;
    case 0x8b: push_long(little_endian(4)); return true;
    case 'G': skip(8); push({Tag::kOther, 0}); return true;
    case 0x8c: push_text(bytes(byte())); return true;
    case 'X': push_text(bytes(little_endian(4))); return true;
    case 0x8d: push_text(bytes(little_endian(8))); return true;
    case 'C': skip(byte()); push({Tag::kOther, 0}); return true;
    case 'B': skip(little_endian(4)); push({Tag::kOther, 0}); return true;
    case 0x8e: skip(little_endian(8)); push({Tag::kOther, 0}); return true;
    case 0x8f: push({Tag::kOther, 0}); return true;
    case 0x90: append_from(Tag::kOther, pop_mark()); return true;
    case 'h': push(remembered(byte())); return true;
    case 'j': push(remembered(little_endian(4))); return true;
    case 'q': memoize(byte()); return true;
    case 'r': memoize(little_endian(4)); return true;
    case 0x94: memoize(memo_.size()); return true;
    default: return false;
  }
}

bool PickleTree::step_text(std::uint8_t opcode) {
  switch (opcode) {
    case 'I': case 'L': push_number(line()); return true;
    case 'F': line(); push({Tag::kOther, 0}); return true;
    case 'V': push_text(line()); return true;
    default: return false;
  }
}

}  // namespace stalloc
