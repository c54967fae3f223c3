#include "faults/heap.h"

#include <cstdlib>
#include <new>

namespace stalloc {

thread_local std::int64_t Heap::allocations = 0;
thread_local std::int64_t Heap::fail_at = -1;

}  // namespace stalloc

void* operator new(std::size_t size) {
  ++stalloc::Heap::allocations;
  if (stalloc::Heap::fail_at >= 0 && stalloc::Heap::fail_at-- == 0) throw std::bad_alloc();
  if (void* ptr = std::malloc(size == 0 ? 1 : size)) return ptr;
  throw std::bad_alloc();
}
void operator delete(void* ptr) noexcept { std::free(ptr); }
void operator delete(void* ptr, std::size_t) noexcept { std::free(ptr); }
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  try {
    return operator new(size);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void* operator new[](std::size_t size) { return operator new(size); }
void* operator new[](std::size_t size, const std::nothrow_t& nothrow) noexcept { return operator new(size, nothrow); }
void operator delete(void* ptr, const std::nothrow_t&) noexcept { std::free(ptr); }
void operator delete[](void* ptr) noexcept { std::free(ptr); }
void operator delete[](void* ptr, std::size_t) noexcept { std::free(ptr); }
void operator delete[](void* ptr, const std::nothrow_t&) noexcept { std::free(ptr); }
