#include "core/size_models.h"

#include <algorithm>
#include <cmath>
#include <set>

namespace stalloc {
namespace {

constexpr std::size_t kVariablesTried = 6;
constexpr std::size_t kMostFollowed = 3;
constexpr std::size_t kMinAffinePoints = 3;
constexpr Bytes kFarApart = 4096 * kAlignment;
constexpr Bytes kTelling = 64 * kAlignment;  // rounding changes a larger size by less than 2%
constexpr std::size_t kMinFollowers = 3;     // of a batch, not of a by-product

using Series = std::vector<Bytes>;  // one value a step

bool is_constant(const Series& sizes) {
  const Bytes any = round_up(*std::max_element(sizes.begin(), sizes.end()), kAlignment);
  return std::all_of(sizes.begin(), sizes.end(),
                     [any](Bytes size) { return size == kAbsentSize || round_up(size, kAlignment) == any; });
}

bool explains(const SizeModel& model, const Series& values, const Series& sizes) {
  for (std::size_t step = 0; step < sizes.size(); ++step)
    if (model.bytes_at(values[step]) != round_up(sizes[step], kAlignment)) return false;
  return true;
}

// How a series may follow a variable, the surest way first. Sizes are rounded when they are compared, so a small one often
// follows several variables within the rounding, and but one of them to the byte.
enum class Fit { kProportionalToTheByte, kProportional, kAffine };

bool is_to_the_byte(const SizeModel& model, const Series& values, const Series& sizes) {
  for (std::size_t step = 0; step < sizes.size(); ++step)
    if (std::abs(model.slope * static_cast<double>(values[step]) - static_cast<double>(sizes[step])) >= 0.5) return false;
  return true;
}

// The part of two series in which neither is absent.
std::pair<Series, Series> met_together(const Series& values, const Series& sizes) {
  std::pair<Series, Series> met;
  for (std::size_t step = 0; step < sizes.size(); ++step) {
    if (values[step] == kAbsentSize || sizes[step] == kAbsentSize) continue;
    met.first.push_back(values[step]);
    met.second.push_back(sizes[step]);
  }
  return met;
}

bool fit_proportional(const Series& values, const Series& sizes, SizeModel* model) {
  const auto largest = static_cast<std::size_t>(std::max_element(values.begin(), values.end()) - values.begin());
  model->base = 0;
  model->slope = static_cast<double>(sizes[largest]) / static_cast<double>(values[largest]);
  return explains(*model, values, sizes);
}

bool fit_affine(const Series& values, const Series& sizes, SizeModel* model) {
  const auto low = static_cast<std::size_t>(std::min_element(values.begin(), values.end()) - values.begin());
  const auto high = static_cast<std::size_t>(std::max_element(values.begin(), values.end()) - values.begin());
  model->slope = static_cast<double>(sizes[high] - sizes[low]) / static_cast<double>(values[high] - values[low]);
  model->base = static_cast<double>(sizes[low]) - model->slope * static_cast<double>(values[low]);
  return explains(*model, values, sizes);
}

// The variables that have been defined so far.
class Variables {
 public:
  Variables(const std::vector<Series>& sizes, std::size_t min_affine_points)
      : sizes_(sizes), min_affine_points_(min_affine_points) {}

  // The latest ones first, since a request follows its own micro-step's, then those that most requests follow.
  bool fit(const Series& series, SizeModel* model) {
    const std::size_t oldest = definers_.size() - std::min(definers_.size(), kVariablesTried);
    for (const Fit fit : {Fit::kProportionalToTheByte, Fit::kProportional, Fit::kAffine}) {
      for (std::size_t variable = definers_.size(); variable-- > oldest;)
        if (follows(variable, series, fit, model)) return true;
      for (const std::size_t variable : most_followed_)
        if (variable < oldest && follows(variable, series, fit, model)) return true;
    }
    return false;
  }
  void define(std::size_t request) {
    definers_.push_back(request);
    num_followers_.push_back(0);
  }
  const std::vector<std::size_t>& definers() const noexcept { return definers_; }
  std::size_t num_followers(std::size_t variable) const noexcept { return num_followers_[variable]; }

 private:
  bool follows(std::size_t variable, const Series& series, Fit fit, SizeModel* model) {
    const auto [values, sizes] = met_together(sizes_[definers_[variable]], series);
    model->variable = static_cast<std::int32_t>(variable);
    if (fit == Fit::kAffine ? !may_be_affine(values, sizes) || !fit_affine(values, sizes, model)
                            : values.size() < 2 || !fit_proportional(values, sizes, model))
      return false;
    if (fit == Fit::kProportionalToTheByte && !is_to_the_byte(*model, values, sizes)) return false;
    if (fit == Fit::kProportional && is_of_another_micro_step(variable) && *std::min_element(sizes.begin(), sizes.end()) < kTelling) return false;
    ++num_followers_[variable];
    rank(variable);
    return true;
  }

  // After rounding a small size is soon in proportion to the batch of an earlier micro-step by chance.
  bool is_of_another_micro_step(std::size_t variable) const {
    return std::any_of(num_followers_.begin() + static_cast<std::ptrdiff_t>(variable) + 1, num_followers_.end(),
                       [](std::size_t count) { return count >= kMinFollowers; });
  }

  // Through two points every line is exact, and through three that are near each other soon one is after rounding.
  bool may_be_affine(const Series& values, const Series& sizes) const {
    const std::size_t num_different = std::set<Bytes>(values.begin(), values.end()).size();
    if (num_different >= min_affine_points_) return true;
    const auto [least, most] = std::minmax_element(sizes.begin(), sizes.end());
    return num_different >= kMinAffinePoints && *most - *least >= kFarApart;
  }

  void rank(std::size_t variable) {
    const auto known = std::find(most_followed_.begin(), most_followed_.end(), variable);
    if (known == most_followed_.end()) most_followed_.push_back(variable);
    std::stable_sort(most_followed_.begin(), most_followed_.end(),
                     [this](std::size_t a, std::size_t b) { return num_followers_[a] > num_followers_[b]; });
    if (most_followed_.size() > kMostFollowed) most_followed_.pop_back();
  }

  const std::vector<Series>& sizes_;
  const std::size_t min_affine_points_;
  std::vector<std::size_t> definers_;       // request, by variable
  std::vector<std::size_t> num_followers_;  // by variable
  std::vector<std::size_t> most_followed_;  // some variables, by their followers
};

// A request that follows nothing tells a new variable. Where that happens all the time the sizes are dynamic.
void drop_lone_variables(SizeModels& fitted, const Variables& variables) {
  std::vector<std::size_t> lone;
  for (std::size_t variable = 0; variable < variables.definers().size(); ++variable)
    if (variables.num_followers(variable) == 0) lone.push_back(variables.definers()[variable]);
  if (lone.size() <= std::max<std::size_t>(8, fitted.models.size() / 100)) return;
  for (const std::size_t request : lone) {
    fitted.models[request] = SizeModel{};
    fitted.is_known[request] = false;
  }
}

// What follows one variable, the least first, to compare it with what follows another.
std::vector<double> slopes_after(const SizeModels& fitted, std::int32_t variable) {
  std::vector<double> slopes;
  for (const SizeModel& model : fitted.models)
    if (model.variable == variable && !model.defines) slopes.push_back(model.slope);
  std::sort(slopes.begin(), slopes.end());
  return slopes;
}

// A micro-step of others, which begins or ends the accumulation, has a few requests more and a few less.
bool are_alike(const std::vector<double>& a, const std::vector<double>& b) {
  constexpr double kTolerance = 0.01;  // slopes are fitted to rounded sizes
  constexpr double kLeastShare = 0.9;
  std::size_t in_common = 0;
  for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    if (std::abs(a[i] - b[j]) <= kTolerance * std::max(std::abs(a[i]), std::abs(b[j]))) {
      ++in_common;
      ++i;
      ++j;
    } else {
      ++(a[i] < b[j] ? i : j);
    }
  }
  return static_cast<double>(in_common) >= kLeastShare * static_cast<double>(std::max(a.size(), b.size()));
}

// Micro-steps do the same with batches drawn from the same data: what one was long enough for, another will meet too.
void share_values(SizeModels& fitted) {
  const std::size_t num_variables = fitted.variable_bytes.size();
  std::vector<std::vector<double>> slopes;
  for (std::size_t variable = 0; variable < num_variables; ++variable)
    slopes.push_back(slopes_after(fitted, static_cast<std::int32_t>(variable)));
  for (std::size_t a = 0; a < num_variables; ++a)
    for (std::size_t b = a + 1; b < num_variables; ++b)
      if (!slopes[a].empty() && are_alike(slopes[a], slopes[b]))
        fitted.variable_bytes[a] = fitted.variable_bytes[b] = std::max(fitted.variable_bytes[a], fitted.variable_bytes[b]);
}

// What always was in proportion to the variable that leads it will be so for the longest batch too. It follows it not to the byte,
// and would be known only after the slots were placed.
void raise_led(SizeModels& fitted, const std::vector<Series>& sizes, const Variables& variables) {
  constexpr double kTolerance = 1.05;
  std::vector<std::size_t> num_followers;
  for (std::size_t variable = 0; variable < fitted.variable_bytes.size(); ++variable) num_followers.push_back(variables.num_followers(variable));
  const std::vector<std::int32_t> leading = leading_variables(num_followers);
  for (std::size_t variable = 0; variable < leading.size(); ++variable) {
    if (leading[variable] == kNoVariable) continue;
    const auto leader = static_cast<std::size_t>(leading[variable]);
    const auto [lengths, values] = met_together(sizes[variables.definers()[leader]], sizes[variables.definers()[variable]]);
    if (lengths.size() < 2) continue;
    std::vector<double> ratios;
    for (std::size_t step = 0; step < lengths.size(); ++step) ratios.push_back(static_cast<double>(values[step]) / static_cast<double>(lengths[step]));
    const auto [least, most] = std::minmax_element(ratios.begin(), ratios.end());
    if (*most > kTolerance * *least) continue;
    const auto led = static_cast<Bytes>(std::ceil(*most * static_cast<double>(fitted.variable_bytes[leader])));
    fitted.variable_bytes[variable] = std::max(fitted.variable_bytes[variable], led);
  }
}

}  // namespace

SizeModels fit_sizes(const std::vector<Series>& sizes, std::size_t min_affine_points, bool shares_values) {
  SizeModels fitted;
  fitted.models.resize(sizes.size());
  fitted.is_known.assign(sizes.size(), true);
  Variables variables(sizes, min_affine_points);
  for (std::size_t request = 0; request < sizes.size(); ++request) {
    const Series& series = sizes[request];
    SizeModel& model = fitted.models[request];
    model.base = static_cast<double>(*std::max_element(series.begin(), series.end()));
    if (is_constant(series) || variables.fit(series, &model)) continue;
    model = SizeModel{0, 1, static_cast<std::int32_t>(variables.definers().size()), true};
    variables.define(request);
    fitted.variable_bytes.push_back(*std::max_element(series.begin(), series.end()));
  }
  drop_lone_variables(fitted, variables);
  if (shares_values) share_values(fitted);
  raise_led(fitted, sizes, variables);
  return fitted;
}

}  // namespace stalloc
