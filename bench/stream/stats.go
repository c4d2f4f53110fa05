package main

import (
	"math"
	"slices"
)

// quantile of numbers, 0 to 1, between neighbours in proportion.
func quantile(numbers []float64, q float64) float64 {
	sorted := slices.Sorted(slices.Values(numbers))
	at := q * float64(len(sorted)-1)
	below := int(at)
	above := min(below+1, len(sorted)-1)
	return sorted[below] + (at-float64(below))*(sorted[above]-sorted[below])
}

func median(numbers []float64) float64 { return quantile(numbers, 0.5) }

// spread is how far the largest number is from the smallest, as a part of the median.
func spread(numbers []float64) float64 {
	m := median(numbers)
	if m == 0 {
		return 0
	}
	return (slices.Max(numbers) - slices.Min(numbers)) / m
}

// ratio compares two contenders.
type ratio struct {
	value     float64 // the median of the ratios of single rounds
	low, high float64 // their quartiles
}

// ratioOf divides a by b, which were measured in the same rounds: what slowed down a round slowed down both.
func ratioOf(a, b []float64) ratio {
	n := min(len(a), len(b))
	if n == 0 {
		return ratio{math.NaN(), math.NaN(), math.NaN()}
	}
	each := make([]float64, n)
	for i := range each {
		each[i] = a[i] / b[i]
	}
	return ratio{median(each), quantile(each, 0.25), quantile(each, 0.75)}
}
