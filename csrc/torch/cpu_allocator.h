// torch's allocator of host memory: what an engine has a place for comes from its arena, the rest from the
// allocator that was there before.
#pragma once

#include <c10/core/Allocator.h>
#include <pthread.h>

#include <cstddef>

#include "runtime/engine.h"
#include "torch/cpu_upstream.h"

namespace stalloc {

class CpuAllocator final : public c10::Allocator {
 public:
  // Puts the one CpuAllocator of the process in place; idempotent. Throws Error, with nothing changed, where the
  // present allocator cannot be wrapped. There is no way back: storages keep our pointer, so to leave means to
  // deactivate the engine and pass everything through.
  static CpuAllocator& install();
  static CpuAllocator* installed() noexcept;

  Engine& engine() noexcept { return engine_; }
  c10::Allocator& native() noexcept { return native_; }

  c10::DataPtr allocate(std::size_t size_bytes) override;
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* destination, const void* source, std::size_t size_bytes) const override;

 private:
  CpuAllocator(c10::Allocator& native, c10::DeleterFnPtr native_deleter);

  StreamHandle stream_of_caller() const noexcept;
  static void release(void* ptr) noexcept;  // the deleter of every block, served or not

  c10::Allocator& native_;
  const c10::DeleterFnPtr native_deleter_;
  const pthread_t training_thread_;  // the one that installed us
  CpuUpstream upstream_;
  Engine engine_;
};

}  // namespace stalloc
