#include "core/pickle_values.h"

#include <algorithm>

namespace stalloc {
namespace {

constexpr std::size_t kChunkValues = std::size_t{1} << 14;
constexpr std::size_t kLargeRun = kChunkValues / 4;  // from here on a run has memory of its own
constexpr std::size_t kFreeBytes = std::size_t{64} << 20;  // whatever the file
constexpr double kMostTimesRead = 2.6;                     // beside them
constexpr std::size_t kMostKeys = 256;

}  // namespace

PickleValues::Value PickleValues::new_text(std::string_view text) {
  auto it = text_index_.find(text);
  if (it == text_index_.end()) {
    charge(text.size() + 96);
    text_storage_.emplace_back(text);
    it = text_index_.emplace(text_storage_.back(), texts_.size()).first;
    texts_.push_back(&text_storage_.back());
  }
  return {Tag::kText, static_cast<std::int64_t>(it->second)};
}

PickleValues::Value PickleValues::new_list(const Value* values, std::size_t count) {
  charge(sizeof(List));
  add_to_list(lists_.emplace_back(), values, count);
  return {Tag::kList, static_cast<std::int64_t>(lists_.size() - 1)};
}

PickleValues::Value PickleValues::new_dict(const Value* pairs, std::size_t num_values) {
  charge(sizeof(Dict));
  add_to_dict(dicts_.emplace_back(), pairs, num_values);
  return {Tag::kDict, static_cast<std::int64_t>(dicts_.size() - 1)};
}

void PickleValues::append(Value target, const Value* values, std::size_t count) {
  if (target.tag() == Tag::kDict) {
    add_to_dict(dicts_[target.index()], values, count);
  } else {
    add_to_list(lists_[target.index()], values, count);
  }
}

void PickleValues::finish() noexcept {
  bytes_ = nullptr;
  shape_index_ = {};
}

void PickleValues::charge(std::size_t bytes) {
  charged_ += bytes;
  const double allowed = static_cast<double>(kFreeBytes) + kMostTimesRead * static_cast<double>(bytes_->total_read());
  if (static_cast<double>(charged_) > allowed) bytes_->refuse("the file needs too much memory for its size");
}

PickleValues::Value* PickleValues::new_run(std::size_t capacity) {
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
void PickleValues::drop_run(const Value* run, std::size_t capacity) {
  if (capacity <= kLargeRun) return;
  const auto it = std::find_if(large_runs_.rbegin(), large_runs_.rend(),
                               [run](const auto& owned) { return owned.get() == run; });
  if (it == large_runs_.rend()) return;
  large_runs_.erase(std::next(it).base());
  charged_ -= capacity * sizeof(Value);
}

void PickleValues::add_to_list(List& list, const Value* values, std::size_t count) {
  if (count == 0) return;
  const std::size_t total = list.count + count;
  if (total > UINT32_MAX / 2) bytes_->refuse("a list is too long");
  if (total > list.capacity) {
    const std::size_t capacity = list.count == 0 ? total : total + total / 2;
    Value* run = new_run(capacity);
    std::copy_n(list.data, list.count, run);
    drop_run(list.data, list.capacity);
    list.data = run;
    list.capacity = static_cast<std::uint32_t>(capacity);
  }
  std::copy_n(values, count, list.data + list.count);
  list.count = static_cast<std::uint32_t>(total);
}

PickleValues::Items PickleValues::items(Value value) const noexcept {
  if (value.tag() == Tag::kList) return {lists_[value.index()].data, lists_[value.index()].count};
  if (value.tag() == Tag::kDict) return {dicts_[value.index()].data, dicts_[value.index()].count};
  return {};
}

PickleValues::Value PickleValues::get(Value dict, std::string_view key) const noexcept {
  if (dict.tag() != Tag::kDict) return {};
  const Dict& found = dicts_[dict.index()];
  const Keys& keys = shapes_[found.shape];
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (keys[i].tag() == Tag::kText && text(keys[i]) == key) return found.data[i];
  }
  return {};
}

std::size_t PickleValues::KeysHash::operator()(const Keys& keys) const noexcept {
  std::uint64_t hash = 1469598103934665603u;
  for (const Value& key : keys) hash = (hash ^ key.bits()) * 1099511628211u;
  return static_cast<std::size_t>(hash ^ (hash >> 32));
}

std::uint32_t PickleValues::shape_of(std::uint32_t base, const Value* pairs, std::size_t num_pairs) {
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

void PickleValues::add_to_dict(Dict& dict, const Value* pairs, std::size_t num_values) {
  if (num_values % 2 != 0) bytes_->refuse("a dict has a key without a value");
  const std::size_t num_pairs = num_values / 2;
  if (num_pairs == 0) return;
  const std::size_t total = dict.count + num_pairs;
  if (total > kMostKeys) bytes_->refuse("a dict has more than 256 keys");
  dict.shape = shape_of(dict.shape, pairs, num_pairs);
  Value* run = new_run(total);
  std::copy_n(dict.data, dict.count, run);
  for (std::size_t i = 0; i < num_pairs; ++i) run[dict.count + i] = pairs[2 * i + 1];
  dict.data = run;
  dict.count = static_cast<std::uint32_t>(total);
}

}  // namespace stalloc
