import { simulate } from '/tmp/rv/rev/build/test/instances/simulator.js'
import { limits } from '/tmp/rv/rev/build/test/core/run.js'
import { allowedBurst } from '/tmp/rv/rev/build/test/instances/spacing.js'
function worst(times,rate){let best=-1e9,f,t,low,lf;times.forEach((x,i)=>{const v=i-rate*x;if(lf===undefined||v<low){low=v;lf=x}const e=v+1-low;if(e>best){best=e;f=lf;t=x}});return{w:+best.toFixed(2),from:f,to:t,count:times.filter(x=>x>=f&&x<=t).length}}
for(const r of [200,1000]) for(const far of [15,30,50,100]) for (const how of ['killed','load ends','none']) {
  const s=await simulate({stack:[limits(r,r*20,'everyone')],count:4,sources:[0,1,2,3].map(instance=>({instance,keys:['all'],load:{kind:'saturated',depth:Math.ceil(r/4)},...(how=='load ends'&&instance==0?{to:6000}:{})})),distance:i=>i==0?far:0.25})
  await s.run(6000);if(how=='killed')s.kill(0);await s.run(9000)
  const x=worst(s.releases.map(x=>x.at),r/1000);const al=allowedBurst(r/1000,4)
  console.log(x.w>al?'VIOLATED':'ok      ',`r ${r}, far one ${far} ms, ${how}: ${JSON.stringify(x)} allowed ${al}`)
}
