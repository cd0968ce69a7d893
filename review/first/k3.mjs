// all lose the store together for 0.4..2 s ("local": at most r in all; recovery does not exceed r)
import { simulate } from '/tmp/rv/rev/build/test/instances/simulator.js'
import { limits } from '/tmp/rv/rev/build/test/core/run.js'
import { worstBurst, allowedBurst } from '/tmp/rv/rev/build/test/instances/spacing.js'
for (let seed=1;seed<=14;seed++) for (const r of [20,200,1000]) for (const far of [0.25,25]) {
  const stack=[limits(r,r*20,'everyone')]
  const s=await simulate({stack,count:4,seed,distance:i=>i==0?far:0.25,sources:[0,1,2,3].map(instance=>({instance,keys:['all'],load:{kind:'saturated',depth:Math.ceil(r/8)}}))})
  await s.run(4000+seed*37); for(const c of s.connections)c.down=true
  const t=4000+seed*37+200+seed*130; await s.run(t); for(const c of s.connections)c.down=false
  await s.run(t+5000)
  const w=worstBurst(s.releases.map(x=>x.at),r/1000), al=allowedBurst(r/1000,4)
  const late=s.releases.filter(x=>x.at>t+3000).length/2
  if(w>al+1e-6||late<.97*r) console.log(w>al?'BOUND':'SLOW',{seed,r,far,w,al,rateAfter:late})
}
console.log('done')
