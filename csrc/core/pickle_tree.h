// Reads a pickle of plain values (dicts, lists, tuples, texts, numbers) and refuses everything else.
//
// No name in a file is ever looked up and no object is ever built: the opcodes for that are errors. Nothing
// here recurses, so that depth and cycles cost nothing, and memory is bounded by the bytes that were read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/types.h"

namespace stalloc {

class PickleTree {
 public:
  enum class Tag : std::uint8_t { kNone, kBool, kInt, kHuge, kOther, kText, kList, kDict };

  // Four bits of tag above sixty of payload. kHuge is an integer beyond 60 bits; kOther a value that is of no
  // use to us (float, bytes, set).
  class Value {
   public:
    Value() = default;
    Value(Tag tag, std::int64_t payload) noexcept
        : bits_((static_cast<std::uint64_t>(tag) << 60) | (static_cast<std::uint64_t>(payload) & kPayload)) {}
    Tag tag() const noexcept { return static_cast<Tag>(bits_ >> 60); }
    std::int64_t integer() const noexcept { return static_cast<std::int64_t>(bits_ << 4) >> 4; }
    std::size_t index() const noexcept { return static_cast<std::size_t>(bits_ & kPayload); }
    std::uint64_t bits() const noexcept { return bits_; }
    bool operator==(const Value& other) const noexcept { return bits_ == other.bits_; }

   private:
    static constexpr std::uint64_t kPayload = (std::uint64_t{1} << 60) - 1;
    std::uint64_t bits_ = 0;
  };

  struct Items {
    const Value* data = nullptr;
    std::size_t count = 0;
    const Value* begin() const noexcept { return data; }
    const Value* end() const noexcept { return data + count; }
  };

  // Up to `capacity` bytes into `buffer`; 0 at the end.
  using Source = std::function<std::size_t(char* buffer, std::size_t capacity)>;

  // Throws Error on anything that is no complete pickle of plain values, or that needs much more memory than
  // its bytes.
  explicit PickleTree(const Source& source);

  Value root() const noexcept { return root_; }
  const std::string& text(Value value) const { return *texts_[value.index()]; }
  std::size_t num_texts() const noexcept { return texts_.size(); }
  // Of a list or tuple: its values; of a dict: its values in the order of its keys.
  Items items(Value value) const noexcept;
  // The dict's value under `key`; kNone where there is none.
  Value get(Value dict, std::string_view key) const noexcept;
  std::size_t bytes_read() const noexcept { return bytes_read_; }

 private:
  struct Container {
    Value* data = nullptr;
    std::uint32_t count = 0;
    std::uint32_t capacity = 0;
  };
  struct Dict {  // most dicts of a file share their keys with others: a shape is such a row of keys
    Value* data = nullptr;
    std::uint32_t count = 0;
    std::uint32_t shape = 0;
  };
  using Keys = std::vector<Value>;
  struct KeysHash {
    std::size_t operator()(const Keys& keys) const noexcept;
  };

  // --- bytes ---
  std::uint8_t byte();
  std::uint64_t little_endian(int num_bytes);
  std::string_view bytes(std::uint64_t count);
  std::string_view line();
  void skip(std::uint64_t count);
  void fill();

  // --- the machine ---
  void run();
  bool step(std::uint8_t opcode);
  bool step_binary(std::uint8_t opcode);
  bool step_text(std::uint8_t opcode);
  Value pop();
  Value& top();
  std::size_t pop_mark();
  void push(Value value);
  void push_text(std::string_view text);
  void push_long(std::uint64_t num_bytes);
  void push_number(std::string_view digits);
  void push_container(Tag tag, std::size_t first_on_stack);
  void append_from(Tag tag, std::size_t first_on_stack);
  void add_to_dict(Dict& dict, const Value* pairs, std::size_t num_pairs);
  std::uint32_t shape_of(std::uint32_t base, const Value* pairs, std::size_t num_pairs);
  void memoize(std::uint64_t at);
  Value remembered(std::uint64_t at) const;

  // --- memory ---
  void append(Container& container, const Value* values, std::size_t count);
  Value* new_run(std::size_t capacity);
  void drop_run(const Value* run, std::size_t capacity);
  void charge(std::size_t bytes);
  [[noreturn]] void refuse(const std::string& what) const;

  const Source* source_;
  std::vector<char> buffer_;
  std::size_t at_ = 0;
  std::size_t filled_ = 0;
  std::size_t bytes_read_ = 0;
  std::string scratch_;

  std::vector<Value> stack_;
  std::vector<std::size_t> marks_;
  std::deque<Value> memo_;
  Value root_;

  std::deque<Container> containers_;
  std::deque<Dict> dicts_;
  std::deque<Keys> shapes_;  // the first is empty
  std::unordered_map<Keys, std::uint32_t, KeysHash> shape_index_;
  std::uint32_t last_shape_ = 0;
  std::vector<std::unique_ptr<Value[]>> chunks_;
  std::vector<std::unique_ptr<Value[]>> large_runs_;
  std::size_t chunk_used_ = 0;
  std::size_t chunk_capacity_ = 0;
  std::deque<std::string> text_storage_;
  std::vector<const std::string*> texts_;
  std::unordered_map<std::string_view, std::size_t> text_index_;
  std::size_t charged_ = 0;
};

}  // namespace stalloc
