#include "core/size_models.h"

#include <algorithm>
#include <cmath>
#include <set>

namespace stalloc {
namespace {

constexpr std::size_t kVariablesTried = 6;  // the latest ones; a request follows its own micro-step's
constexpr std::size_t kMinAffinePoints = 3;  // through two points every line is exact

using Series = std::vector<Bytes>;  // one value a step

bool is_constant(const Series& sizes) {
  return std::all_of(sizes.begin(), sizes.end(), [&](Bytes size) {
    return round_up(size, kAlignment) == round_up(sizes.front(), kAlignment);
  });
}

bool explains(const SizeModel& model, const Series& values, const Series& sizes) {
  for (std::size_t step = 0; step < sizes.size(); ++step)
    if (model.bytes_at(values[step]) != round_up(sizes[step], kAlignment)) return false;
  return true;
}

bool fit_proportional(const Series& values, const Series& sizes, SizeModel* model) {
  const auto largest = static_cast<std::size_t>(std::max_element(values.begin(), values.end()) - values.begin());
  model->base = 0;
  model->slope = static_cast<double>(sizes[largest]) / static_cast<double>(values[largest]);
  return explains(*model, values, sizes);
}

bool fit_affine(const Series& values, const Series& sizes, SizeModel* model) {
  if (std::set<Bytes>(values.begin(), values.end()).size() < kMinAffinePoints) return false;
  const auto low = static_cast<std::size_t>(std::min_element(values.begin(), values.end()) - values.begin());
  const auto high = static_cast<std::size_t>(std::max_element(values.begin(), values.end()) - values.begin());
  model->slope = static_cast<double>(sizes[high] - sizes[low]) / static_cast<double>(values[high] - values[low]);
  model->base = static_cast<double>(sizes[low]) - model->slope * static_cast<double>(values[low]);
  return explains(*model, values, sizes);
}

// A request that follows nothing tells a new variable. Where that happens all the time the sizes are dynamic.
void drop_lone_variables(SizeModels& fitted, const std::vector<std::size_t>& definers) {
  std::vector<std::size_t> followers(definers.size(), 0);
  for (const SizeModel& model : fitted.models)
    if (model.variable != kNoVariable && !model.defines) ++followers[static_cast<std::size_t>(model.variable)];
  const auto lone = static_cast<std::size_t>(std::count(followers.begin(), followers.end(), std::size_t{0}));
  if (lone <= std::max<std::size_t>(8, fitted.models.size() / 100)) return;
  for (std::size_t variable = 0; variable < definers.size(); ++variable) {
    if (followers[variable] != 0) continue;
    fitted.models[definers[variable]] = SizeModel{};
    fitted.is_known[definers[variable]] = false;
  }
}

// What follows one variable, in order, to compare it with what follows another.
std::vector<double> slopes_after(const SizeModels& fitted, std::int32_t variable) {
  std::vector<double> slopes;
  for (const SizeModel& model : fitted.models)
    if (model.variable == variable && !model.defines) slopes.push_back(model.slope);
  return slopes;
}

bool are_alike(const std::vector<double>& a, const std::vector<double>& b) {
  constexpr double kTolerance = 0.01;  // slopes are fitted to rounded sizes
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), [](double x, double y) {
    return std::abs(x - y) <= kTolerance * std::max(std::abs(x), std::abs(y));
  });
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

}  // namespace

SizeModels fit_sizes(const std::vector<std::vector<Bytes>>& sizes) {
  SizeModels fitted;
  fitted.models.resize(sizes.size());
  fitted.is_known.assign(sizes.size(), true);
  std::vector<std::size_t> definers;  // request, by variable
  for (std::size_t request = 0; request < sizes.size(); ++request) {
    const Series& series = sizes[request];
    SizeModel& model = fitted.models[request];
    model.base = static_cast<double>(series.back());
    if (is_constant(series)) continue;
    const std::size_t oldest = definers.size() - std::min(definers.size(), kVariablesTried);
    bool found = false;
    for (const auto fit : {fit_proportional, fit_affine})
      for (std::size_t variable = definers.size(); !found && variable-- > oldest;) {
        model.variable = static_cast<std::int32_t>(variable);
        found = fit(sizes[definers[variable]], series, &model);
      }
    if (found) continue;
    model = SizeModel{0, 1, static_cast<std::int32_t>(definers.size()), true};
    definers.push_back(request);
    fitted.variable_bytes.push_back(*std::max_element(series.begin(), series.end()));
  }
  drop_lone_variables(fitted, definers);
  share_values(fitted);
  return fitted;
}

}  // namespace stalloc
