// Turns torch's expandable_segments on while the first steps are recorded: what is born in them then pins pages and
// not whole segments. Only where nobody else has decided about the setting, and where nothing that works without it
// would stop working: see why_not().
#pragma once

#include <atomic>
#include <mutex>
#include <string>

namespace stalloc {

class CudaExpandable {
 public:
  // From now on, or from CUDA's initialization on, memory is taken for expandable segments. Returns why it is not:
  // empty where it is, or will be if the devices can.
  std::string turn_on(bool is_initialized);
  // As the program had it. What lies in expandable segments stays there.
  void turn_off() noexcept;
  // Called when CUDA has been initialized.
  void on_initialized() noexcept;
  // A memory pool is about to be opened: pools with an allocator of their own refuse the setting. Off for good.
  void forbid() noexcept;
  // A block is about to be shared with another process, which fetches an expandable segment's file descriptor.
  void allow_sharing() noexcept;

 private:
  std::string why_not() const;

  std::mutex mutex_;      // guards all below; no lock of the engine is held with it
  bool is_wanted_ = false;
  bool is_forbidden_ = false;
  bool is_on_ = false;
  std::string settings_before_;
  std::atomic<bool> was_on_{false};
};

}  // namespace stalloc
