// Extents from the native CUDA allocator, so that its totals and limits stay true; fences are CUDA events.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <mutex>
#include <optional>
#include <vector>

#include "runtime/upstream.h"
#include "torch/compat.h"
#include "torch/cuda_pool_routes.h"

namespace stalloc {

inline constexpr Bytes kSmallRequest = Bytes{1} << 20;  // the native allocator's small pool ends here

class CudaUpstream final : public Upstream {
 public:
  struct Extent {
    std::uintptr_t base = 0;
    Bytes size = 0;
    StreamHandle stream = 0;
    Bytes block_size = 0;  // of the native block: torch counts what it rounded up to, and tails it did not split off
  };

  CudaUpstream(native::CUDAAllocator& native, c10::DeleterFnPtr native_deleter, const CudaPoolRoutes& routes,
               c10::DeviceIndex device)
      : native_(native), native_deleter_(native_deleter), routes_(routes), device_(device) {}
  // Events are leaked: at process exit the driver may be gone.

  // Called before each extent is asked for. Set once, before the first.
  void set_before_extent(std::function<void()> callback) { before_extent_ = std::move(callback); }

  // A stream as the engine knows it. Handles are unique on a device only (0 is every device's default stream), so
  // one of another device carries that device in its top byte, which no address uses.
  StreamHandle handle_of(c10::cuda::CUDAStream stream) const noexcept;

  void* allocate(Bytes size, StreamHandle stream) noexcept override;
  void deallocate(void* extent) noexcept override;
  bool fences_allowed() const noexcept override { return !routes_.any_open(); }
  Fence record_fence(StreamHandle stream) noexcept override;
  bool fence_done(Fence fence) noexcept override;
  void wait_fence(Fence fence) noexcept override;
  bool stream_wait_fence(StreamHandle waiting, Fence fence) noexcept override;
  void release_fence(Fence fence) noexcept override;
  bool fill(void* begin, Bytes size, std::uint8_t byte, StreamHandle stream) noexcept override;
  // Looks at the first bytes only, and waits for the stream.
  Bytes first_other(const void* begin, Bytes size, std::uint8_t byte, StreamHandle stream) noexcept override;

  std::int64_t num_held() const noexcept { return num_held_.load(std::memory_order_relaxed); }
  Bytes held_bytes() const noexcept { return held_bytes_.load(std::memory_order_relaxed); }
  std::optional<Extent> extent_of(const void* ptr) const;
  std::vector<Extent> extents() const;       // held now, by address
  std::vector<Extent> distinct_extents() const;  // ever held: their native trace entries are no program's blocks
  // Extents ever taken, by size: up to 1 MiB, and above it (torch's two pools).
  struct Taken {
    std::array<std::int64_t, 2> count{};
    std::array<Bytes, 2> bytes{};
  };
  Taken taken() const;
  Taken held() const;  // of them those that were not given back

 private:
  bool make_room(Bytes size);
  void enter(const Extent& extent);
  Bytes block_size_of(const Extent& extent) const;
  cudaEvent_t take_spare_event() noexcept;

  native::CUDAAllocator& native_;
  const c10::DeleterFnPtr native_deleter_;
  const CudaPoolRoutes& routes_;
  const c10::DeviceIndex device_;
  std::function<void()> before_extent_;

  mutable std::mutex extents_mutex_;  // guards the three below
  std::vector<Extent> extents_;
  std::vector<Extent> distinct_extents_;
  Taken taken_;
  std::atomic<std::int64_t> num_held_{0};  // of extents_
  std::atomic<Bytes> held_bytes_{0};
  std::mutex events_mutex_;  // guards spare_events_
  std::vector<cudaEvent_t> spare_events_;  // of this device
};

}  // namespace stalloc
