/** A real browser, the one of the system, and pages that notice whatever is wrong with them. */
import { accessSync, constants } from 'node:fs'
import { delimiter, join } from 'node:path'
import { type Browser, type BrowserContextOptions, chromium, type Page } from 'playwright-core'

const NAMES = ['chromium', 'chromium-browser', 'google-chrome', 'google-chrome-stable']
const PLACES = [
  '/Applications/Chromium.app/Contents/MacOS/Chromium',
  '/Applications/Google Chrome.app/Contents/MacOS/Google Chrome',
]
const INSTALL = 'apt-get install chromium (Debian), dnf install chromium (Fedora), brew install --cask chromium (macOS)'

function executable(): string {
  const folders = (process.env.PATH ?? '').split(delimiter).filter(Boolean)
  const found = [...folders.flatMap(folder => NAMES.map(name => join(folder, name))), ...PLACES].find(path => {
    try {
      accessSync(path, constants.X_OK)
      return true
    } catch {
      return false
    }
  })
  if (found === undefined) throw new Error(`the tests need Chromium: ${INSTALL}`)
  return found
}

/** Headless. The sandbox does not work for root, nor is it of use against a page of our own. */
export function openBrowser(): Promise<Browser> {
  return chromium.launch({ executablePath: executable(), args: process.getuid?.() === 0 ? ['--no-sandbox'] : [] })
}

export interface WatchedPage {
  readonly page: Page
  /** Errors on its console, exceptions, violations of its policy, requests to anybody else. */
  readonly faults: string[]
  /** The same, of what a page of width cannot show: by how many pixels it is too wide. */
  overhang(): Promise<number>
}

/** Opens a page; it is closed with the test. */
export async function openPage(
  t: { teardown(run: () => unknown): unknown },
  browser: Browser,
  url: string,
  options: BrowserContextOptions = {},
): Promise<WatchedPage> {
  const context = await browser.newContext({ viewport: { width: 1_280, height: 900 }, ...options })
  t.teardown(() => context.close())
  const page = await context.newPage()
  const faults: string[] = []
  page.on('console', message => {
    if (message.type() === 'error') faults.push(`console: ${message.text()}`)
  })
  page.on('pageerror', error => faults.push(`exception: ${error.message}`))
  page.on('dialog', dialog => {
    faults.push(`dialog: ${dialog.message()}`)
    void dialog.dismiss()
  })
  page.on('request', request => {
    if (request.url().startsWith('data:') || new URL(request.url()).origin === new URL(url).origin) return
    faults.push(`request: ${request.url()}`)
  })
  await page.exposeFunction('violated', (what: string) => void faults.push(`policy: ${what}`))
  await page.addInitScript(`addEventListener('securitypolicyviolation', event => {
    violated(event.violatedDirective + ' ' + event.blockedURI)
  })`)
  await page.goto(url)
  return {
    page,
    faults,
    overhang: () => page.evaluate('document.documentElement.scrollWidth - document.documentElement.clientWidth'),
  }
}
