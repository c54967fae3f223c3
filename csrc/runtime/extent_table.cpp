#include "runtime/extent_table.h"

#include <mutex>

namespace stalloc {
namespace {

std::mutex& table_mutex() {
  static std::mutex* mutex = new std::mutex;  // guards writers; never destroyed: frees come until the very end
  return *mutex;
}

}  // namespace

std::array<ExtentTable::Entry, ExtentTable::kMaxExtents> ExtentTable::entries_;
std::atomic<std::size_t> ExtentTable::used_{0};

bool ExtentTable::publish(Engine* engine, const void* base, Bytes size) noexcept {
  const std::lock_guard<std::mutex> lock(table_mutex());
  std::size_t used = used_.load(std::memory_order_relaxed);
  std::size_t at = 0;
  while (at < used && entries_[at].size.load(std::memory_order_relaxed) != 0) ++at;
  if (at == kMaxExtents) return false;
  entries_[at].engine.store(engine, std::memory_order_relaxed);
  entries_[at].base.store(reinterpret_cast<std::uintptr_t>(base), std::memory_order_relaxed);
  entries_[at].size.store(static_cast<std::uintptr_t>(size), std::memory_order_release);
  if (at == used) used_.store(used + 1, std::memory_order_release);
  return true;
}

void ExtentTable::withdraw(const void* base) noexcept {
  const std::lock_guard<std::mutex> lock(table_mutex());
  const std::size_t used = used_.load(std::memory_order_relaxed);
  for (std::size_t at = 0; at < used; ++at)
    if (entries_[at].base.load(std::memory_order_relaxed) == reinterpret_cast<std::uintptr_t>(base) &&
        entries_[at].size.load(std::memory_order_relaxed) != 0)
      entries_[at].size.store(0, std::memory_order_release);
}

}  // namespace stalloc
