// Random programs against the engine, as many as asked for and until the time is over. A program that fails is told with the seed that repeats it:
//   stress --kind host --seed SEED --programs 1
#include <chrono>
#include <cinttypes>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>

#include "stress/host_program.h"
#include "stress/simulated_program.h"

namespace {

struct Options {
  std::string kind = "all";  // host, threads, simulated, all
  std::uint64_t seed = std::random_device{}();
  std::int64_t programs = 1;
  double seconds = 0;
};

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--kind") == 0) options.kind = argv[i + 1];
    else if (std::strcmp(argv[i], "--seed") == 0) options.seed = std::strtoull(argv[i + 1], nullptr, 10);
    else if (std::strcmp(argv[i], "--programs") == 0) options.programs = std::atoll(argv[i + 1]);
    else if (std::strcmp(argv[i], "--seconds") == 0) options.seconds = std::atof(argv[i + 1]);
    else std::exit(2);
  }
  return options;
}

std::uint64_t current_seed = 0;
const char* current_kind = "";

void tell_seed(int) {
  std::fprintf(stderr, "stress: repeat with --kind %s --seed %" PRIu64 " --programs 1\n", current_kind, current_seed);
  std::_Exit(1);
}

stalloc::Counts run_one(const std::string& kind, std::uint64_t seed) {
  current_seed = seed;
  const std::uint64_t which = kind == "all" ? seed % 3 : 3;
  current_kind = kind != "all" ? kind.c_str() : which == 0 ? "host" : which == 1 ? "threads" : "simulated";
  if (std::strcmp(current_kind, "simulated") == 0) return stalloc::run_simulated_program(seed);
  return stalloc::run_host_program(seed, std::strcmp(current_kind, "threads") == 0);
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  std::signal(SIGABRT, tell_seed);
  std::printf("stress: seed %" PRIu64 "\n", options.seed);
  std::fflush(stdout);
  const auto began = std::chrono::steady_clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count(); };
  stalloc::Counts counts;
  for (std::int64_t i = 0; i < options.programs || seconds() < options.seconds; ++i)
    counts.add(run_one(options.kind, options.seed + static_cast<std::uint64_t>(i)));
  std::printf("stress: programs=%" PRId64 " events=%" PRId64 " served=%" PRId64 " upstream=%" PRId64
              " out_of_memory=%" PRId64 " controls=%" PRId64 " plans=%" PRId64 " refused=%" PRId64 " seconds=%.1f\n",
              counts.programs, counts.events, counts.served, counts.upstream, counts.out_of_memory, counts.controls,
              counts.plans, counts.refused, seconds());
  return 0;
}
