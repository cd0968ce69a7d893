import { Counter, Gauge, type MetricObjectWithValues, type MetricValue, Registry } from 'prom-client'

/** Metrics of the program as a whole, however many processes serve. */
export class ProgramMetrics {
  readonly #registry = new Registry()
  readonly #reloads: Counter<'result'>
  readonly #lastReload: Gauge

  /** @param version of the package */
  constructor(version: string) {
    const registers = [this.#registry]
    this.#reloads = new Counter({
      name: 'shaper_config_reloads_total',
      help: 'Reloads of the configuration, by result',
      labelNames: ['result'],
      registers,
    })
    for (const result of ['ok', 'failed']) this.#reloads.inc({ result }, 0)
    this.#lastReload = new Gauge({
      name: 'shaper_config_last_reload_success',
      help: '1 if the last reload put the configuration into effect, or there was none; 0 if it failed',
      registers,
    })
    this.#lastReload.set(1)
    new Gauge({
      name: 'shaper_build_info',
      help: 'Always 1; the labels say what runs',
      labelNames: ['version', 'node'],
      registers,
    }).set({ version, node: process.versions.node }, 1)
  }

  readonly reloaded = (result: 'ok' | 'failed'): void => {
    this.#reloads.inc({ result })
    this.#lastReload.set(result === 'ok' ? 1 : 0)
  }

  values(): Promise<MetricObjectWithValues<MetricValue<string>>[]> {
    return this.#registry.getMetricsAsJSON()
  }
}
