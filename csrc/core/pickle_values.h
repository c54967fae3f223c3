// The plain values of a pickle: texts kept once, lists, and dicts that share their keys.
//
// Nothing here recurses, so that depth and cycles cost nothing, and memory is bounded by the bytes that were read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/pickle_bytes.h"

namespace stalloc {

class PickleValues {
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

  // What may be kept depends on what `bytes` has read; it outlives the making of values.
  explicit PickleValues(const PickleBytes& bytes) : bytes_(&bytes), shapes_(1) {}

  const std::string& text(Value value) const { return *texts_[value.index()]; }
  // Of a list or tuple: its values; of a dict: its values in the order of its keys.
  Items items(Value value) const noexcept;
  // The dict's value under `key`; kNone where there is none.
  Value get(Value dict, std::string_view key) const noexcept;

  // --- making them; all throw Error where that takes much more memory than the bytes that were read ---
  Value new_text(std::string_view text);
  Value new_list(const Value* values, std::size_t count);
  Value new_dict(const Value* pairs, std::size_t num_values);
  // `target` is a list or a dict; a dict takes keys and values in turn.
  void append(Value target, const Value* values, std::size_t count);
  void charge(std::size_t bytes);
  void finish() noexcept;  // no more are made

 private:
  struct List {
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

  void add_to_list(List& list, const Value* values, std::size_t count);
  void add_to_dict(Dict& dict, const Value* pairs, std::size_t num_values);
  std::uint32_t shape_of(std::uint32_t base, const Value* pairs, std::size_t num_pairs);
  Value* new_run(std::size_t capacity);
  void drop_run(const Value* run, std::size_t capacity);

  const PickleBytes* bytes_;
  std::deque<List> lists_;
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
