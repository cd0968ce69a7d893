import { presentRates, settingsAt } from '../config/schedule.js'
import type { Settings } from '../config/settings.js'
import type { Cancel, Clock } from '../core/clock.js'

/** ms. Times of day are whole minutes, and time zones differ by whole minutes. */
const MINUTE = 60_000

interface TimetableOptions {
  readonly clock: Clock
  /** ms since 1970 */
  readonly wallNow: () => number
  /** The rates have changed to those of this configuration. */
  readonly changed: (present: Settings) => void
}

/** Looks once a minute whether rates are to change, if any depends on the time. So it notices when the clock is set, too. */
export class Timetable {
  readonly #options: TimetableOptions
  #settings: Settings | undefined
  #rates = ''
  #cancel: Cancel | undefined

  constructor(options: TimetableOptions) {
    this.#options = options
  }

  /** Follows a configuration from now on. Returns it with its present rates. */
  follow(settings: Settings): Settings {
    this.close()
    const wall = this.#options.wallNow()
    this.#settings = settings
    this.#rates = ratesText(settings, wall)
    if (this.#rates !== '') this.#plan(wall)
    return settingsAt(settings, wall)
  }

  close(): void {
    this.#cancel?.()
    this.#cancel = undefined
  }

  #plan(wall: number): void {
    const { clock } = this.#options
    this.#cancel = clock.at(clock.now() + MINUTE - (wall % MINUTE), () => this.#look())
  }

  #look(): void {
    const wall = this.#options.wallNow()
    this.#plan(wall)
    const settings = this.#settings!
    const rates = ratesText(settings, wall)
    if (rates === this.#rates) return
    this.#rates = rates
    this.#options.changed(settingsAt(settings, wall))
  }
}

function ratesText(settings: Settings, wall: number): string {
  return presentRates(settings, wall)
    .map(({ rate }) => rate)
    .join()
}
