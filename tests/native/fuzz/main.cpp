// Coverage-guided fuzzing without clang: inputs that reach new edges of the library are kept and changed further.
//
//   fuzz TARGET CORPUS [--seconds N] [--programs N] [--seed S] [--keep 1]   CORPUS: a folder of inputs; --keep writes new ones there
//   fuzz TARGET FILE                                         runs one input
//   fuzz TARGET CORPUS --least FOLDER                        copies the inputs, shortest first, that reach a new edge
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "common/coverage.h"
#include "fuzz/mutator.h"
#include "fuzz/targets.h"

namespace stalloc {

std::int64_t fuzz_events = 0;

namespace {

constexpr unsigned kHangSeconds = 20;

using Target = void (*)(const std::uint8_t*, std::size_t);
struct Named {
  const char* name;
  Target target;
  std::vector<std::string> words;
};
const Named kTargets[] = {
    {"snapshot", fuzz_snapshot,
     {"\x8c\x06" "action", "\x8c\x05" "alloc", "\x8c\x0e" "free_requested", "\x8c\x0e" "free_completed", "\x8c\x04" "addr", "\x8c\x04" "size",
      "\x8c\x06" "stream", "\x8c\x07" "time_us", "\x8c\x06" "frames", "\x8c\x08" "segments", "\x8c\x0d" "device_traces", "\x8c\x06" "blocks",
      "}\x94(", "]\x94(", "u", "e", "s", "a", "h", "(", "\x85", "\x86", "t", "l", "d", "0", "1", "2", "\x8a\x08", "J"}},
    {"plan", fuzz_plan, {}},
    {"engine", fuzz_engine, {}},
};

constexpr std::int64_t kFirstInputs = 16;  // random ones, where there is no corpus
constexpr std::int64_t kFirstBytes = 1024;

const Bytestring* current_input = nullptr;

void keep_input() {
  const char* path = std::getenv("FUZZ_FINDING");
  if (path == nullptr || current_input == nullptr) return;
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(current_input->data()), static_cast<std::streamsize>(current_input->size()));
}
void on_signal(int signal) {
  std::fprintf(stderr, "fuzz: %s\n", signal == SIGALRM ? "an input takes too long" : "aborted");
  keep_input();
  std::_Exit(1);
}

class Fuzzer {
 public:
  Fuzzer(const Named& named, std::uint64_t seed) : named_(named), draw_(seed), mutator_(draw_, named.words) {}

  // True where the input reached what none before it did.
  bool run(const Bytestring& input) {
    std::memset(coverage_hits, 0, sizeof coverage_hits);
    current_input = &input;
    alarm(kHangSeconds);
    named_.target(input.data(), input.size());
    alarm(0);
    ++num_runs_;
    bool is_new = false;
    for (std::size_t i = 0; i < kCoverageSlots; ++i) {
      if (i % 8 == 0) {
        std::uint64_t eight;
        std::memcpy(&eight, coverage_hits + i, 8);
        if (eight == 0) i += 7;
      }
      if (coverage_hits[i] == 0) continue;
      const auto bucket = static_cast<std::uint8_t>(1 << (31 - __builtin_clz(coverage_hits[i])));
      if ((seen_[i] & bucket) != 0) continue;
      num_edges_ += seen_[i] == 0;
      seen_[i] = static_cast<std::uint8_t>(seen_[i] | bucket);
      is_new = true;
    }
    return is_new;
  }

  void add(const Bytestring& input) {
    if (run(input)) corpus_.push_back(input);
  }
  void add_random() {
    Bytestring input(static_cast<std::size_t>(draw_.between(1, kFirstBytes)));
    for (std::uint8_t& byte : input) byte = static_cast<std::uint8_t>(draw_.below(256));
    add(input);
  }
  std::int64_t num_edges() const noexcept { return num_edges_; }
  // A new input that was worth keeping, or an empty one.
  Bytestring try_one() {
    const Bytestring nothing;
    Bytestring input = corpus_.empty() ? mutator_.mutated({}, {}) : mutator_.mutated(draw_.pick(corpus_), draw_.pick(corpus_));
    if (!run(input)) return nothing;
    corpus_.push_back(input);
    return input;
  }
  void tell(double seconds) const {
    std::printf("fuzz: programs=%" PRId64 " events=%" PRId64 " edges=%" PRId64 " corpus=%zu seconds=%.1f\n", num_runs_,
                fuzz_events, num_edges_, corpus_.size(), seconds);
    std::fflush(stdout);
  }

 private:
  const Named& named_;
  Draw draw_;
  Mutator mutator_;
  std::vector<Bytestring> corpus_;
  std::vector<std::uint8_t> seen_ = std::vector<std::uint8_t>(kCoverageSlots);
  std::int64_t num_runs_ = 0;
  std::int64_t num_edges_ = 0;
};

Bytestring read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

int copy_least(const Named& named, const std::filesystem::path& corpus, const std::filesystem::path& out) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(corpus)) paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end(), [](const auto& a, const auto& b) {
    return std::make_pair(std::filesystem::file_size(a), a) < std::make_pair(std::filesystem::file_size(b), b);
  });
  Fuzzer fuzzer(named, 0);
  for (const auto& path : paths) {
    const std::int64_t before = fuzzer.num_edges();
    fuzzer.add(read_file(path));
    if (fuzzer.num_edges() > before + 8) std::filesystem::copy_file(path, out / path.filename());
  }
  fuzzer.tell(0);
  return 0;
}

int run_all(const Named& named, const std::filesystem::path& corpus, std::uint64_t seed, double seconds, std::int64_t programs, bool keeps) {
  const auto began = std::chrono::steady_clock::now();
  const auto passed = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count(); };
  Fuzzer fuzzer(named, seed);
  if (std::filesystem::is_regular_file(corpus)) {
    fuzzer.run(read_file(corpus));
    return 0;
  }
  std::printf("fuzz: seed %" PRIu64 "\n", seed);
  if (std::filesystem::is_directory(corpus))
    for (const auto& entry : std::filesystem::directory_iterator(corpus)) fuzzer.add(read_file(entry.path()));
  for (std::int64_t i = 0; i < kFirstInputs; ++i) fuzzer.add_random();
  fuzzer.tell(passed());
  for (std::int64_t i = 0; i < programs || passed() < seconds; ++i) {
    const Bytestring found = fuzzer.try_one();
    if (found.empty() || !keeps) continue;
    char name[32];
    std::snprintf(name, sizeof name, "%016zx", std::hash<std::string>()(std::string(found.begin(), found.end())));
    std::ofstream(corpus / name, std::ios::binary)
        .write(reinterpret_cast<const char*>(found.data()), static_cast<std::streamsize>(found.size()));
  }
  fuzzer.tell(passed());
  return 0;
}

}  // namespace
}  // namespace stalloc

int main(int argc, char** argv) {
  using namespace stalloc;
  if (argc < 3) return 2;
  double seconds = 0;
  std::int64_t programs = 0;
  std::uint64_t seed = std::random_device{}();
  bool keeps = false;
  std::string least;
  for (int i = 3; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--seconds") == 0) seconds = std::atof(argv[i + 1]);
    if (std::strcmp(argv[i], "--programs") == 0) programs = std::atoll(argv[i + 1]);
    if (std::strcmp(argv[i], "--seed") == 0) seed = std::strtoull(argv[i + 1], nullptr, 10);
    if (std::strcmp(argv[i], "--least") == 0) least = argv[i + 1];
    if (std::strcmp(argv[i], "--keep") == 0) keeps = std::atoi(argv[i + 1]) != 0;
  }
  std::signal(SIGABRT, on_signal);
  std::signal(SIGALRM, on_signal);
  for (const Named& named : kTargets)
    if (std::strcmp(named.name, argv[1]) == 0)
      return !least.empty() ? copy_least(named, argv[2], least) : run_all(named, argv[2], seed, seconds, programs, keeps);
  return 2;
}
