#include "fuzz/mutator.h"

#include <algorithm>

namespace stalloc {
namespace {

constexpr std::size_t kMostBytes = 4096;
const std::uint8_t kEdges[] = {0, 1, 0x7f, 0x80, 0xff, '(', '.', 's', 'e'};

}  // namespace

Bytestring Mutator::mutated(const Bytestring& input, const Bytestring& other) {
  Bytestring result = input;
  for (std::int64_t i = draw_.between(1, 6); i > 0; --i) edit(result, other);
  if (result.size() > kMostBytes) result.resize(kMostBytes);
  return result;
}

void Mutator::insert(Bytestring& input, const std::uint8_t* piece, std::size_t size) {
  input.insert(input.begin() + draw_.below(static_cast<std::int64_t>(input.size()) + 1), piece, piece + size);
}

void Mutator::edit(Bytestring& input, const Bytestring& other) {
  const auto length = static_cast<std::int64_t>(input.size());
  if (length == 0) {
    input.push_back(static_cast<std::uint8_t>(draw_.below(256)));
    return;
  }
  const std::int64_t at = draw_.below(length);
  const std::int64_t span = std::min(length - at, draw_.between(1, draw_.chance(0.5) ? 8 : 128));
  std::uint8_t& byte = input[static_cast<std::size_t>(at)];
  switch (draw_.below(9)) {
    case 0: byte = static_cast<std::uint8_t>(byte ^ (1 << draw_.below(8))); break;
    case 1: byte = static_cast<std::uint8_t>(draw_.below(256)); break;
    case 2: byte = kEdges[draw_.below(sizeof kEdges)]; break;
    case 3: byte = static_cast<std::uint8_t>(byte + draw_.between(-4, 4)); break;
    case 4: input.erase(input.begin() + at, input.begin() + at + span); break;
    case 5: {
      const Bytestring piece(input.begin() + at, input.begin() + at + span);
      insert(input, piece.data(), piece.size());
      break;
    }
    case 6: {
      if (other.empty()) break;
      const std::int64_t from = draw_.below(static_cast<std::int64_t>(other.size()));
      insert(input, other.data() + from, static_cast<std::size_t>(std::min<std::int64_t>(static_cast<std::int64_t>(other.size()) - from, span)));
      break;
    }
    case 7: {
      if (words_.empty()) break;
      const std::string& word = draw_.pick(words_);
      insert(input, reinterpret_cast<const std::uint8_t*>(word.data()), word.size());
      break;
    }
    default: std::swap(byte, input[static_cast<std::size_t>(draw_.below(length))]); break;
  }
}

}  // namespace stalloc
